"""One call of ``tokgate bisect``: releases, then commits, a log at its end whatever ended it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tokgate.analysis.values import Better
from tokgate.bump.bisect_log import stage
from tokgate.bump.bisection import Bisection, Result
from tokgate.bump.candidates import EngineFiles, between, check_releases, commits, left_out, named, released
from tokgate.bump.engines import engine_named, engine_of_commit
from tokgate.bump.options import BumpOptions, Prepared, prepare
from tokgate.bump.place import keep_place
from tokgate.bump.question import check_sought
from tokgate.bump.run import with_calibrations
from tokgate.bump.search import steps_at_most
from tokgate.bump.servers import benches
from tokgate.bump.steps import FAILURE, Prober, Sought
from tokgate.config.engine import Engine
from tokgate.errors import SampleFault, UsageFault
from tokgate.gate.cards import driver
from tokgate.gate.claim import claim
from tokgate.gate.results import write_text
from tokgate.host.stored_file import measured_into
from tokgate.load.sample import write_json
from tokgate.report.bisect_markdown import Stage, log
from tokgate.sglang.version import parse_version

FILE = "bisect.json"
PREFIX = "bisect-"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BisectOptions:
    """What decides a bisection.

    Attributes:
        good, bad: versions, or commits of ``commits``.
        versions: candidates; empty: those of the engine files, or of the package index.
        engines: template of engine files, ``FOLDER/{version}.yaml``.
        commits: a local clone, searched between the releases that were found (or between the ends).
        launches: for a failure: launches without one that make a version good.
        limit_percent: the change that the ends must show; the gate's limit when not given.
        bump: everything else, with the ends as its engines.
    """

    good: str
    bad: str
    metric: str
    bump: BumpOptions
    versions: tuple[str, ...] = ()
    engines: str | None = None
    commits: str | None = None
    launches: int = 3
    limit_percent: float | None = None

    def write(self, folder: Path) -> None:
        """Keep them, before anything is measured."""
        write_json(folder / FILE, asdict(self))


def read_options(folder: Path) -> BisectOptions:
    """The options of a bisection that was begun.

    Raises:
        SampleFault: there is none, or its file is damaged.
    """
    path = folder / FILE
    try:
        data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values = {f.name: _tuple(data[f.name]) for f in fields(BisectOptions)}
        values["bump"] = BumpOptions(**{key: _tuple(value) for key, value in data["bump"].items()})
        return BisectOptions(**values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise SampleFault(f"{path}: {error}") from error


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def candidates(options: BisectOptions) -> list[str]:
    """The versions to be halved, in order, ends included; of commits, the ends alone when they are none.

    Raises:
        UsageFault: versions that are not in order, commits that are not there.
        HostFault: the package index does not answer.
    """
    if parse_version(options.good) is None or parse_version(options.bad) is None:
        if options.commits is None:
            raise UsageFault(
                "--good and --bad are versions; for commits give the clone: --commits REPOSITORY"
            )
        return commits(Path(options.commits), options.good, options.bad)
    if options.commits is not None:
        # Searched later, between the releases found: hours of measuring must not end at a wrong path.
        check_releases(Path(options.commits))
    known: Sequence[str] = named(options.versions)
    if not known:
        known = EngineFiles(options.engines).versions() if options.engines else released()
    return between(options.good, options.bad, known)


def engine_source(options: BisectOptions, say: Say, *, dry: bool = False) -> Callable[[str], Engine]:
    """Version or commit -> engine; one that is not there is made.

    Args:
        dry: nothing is made: an engine is taken as it will be.
    """
    if options.engines is not None:
        return EngineFiles(options.engines).engine
    if dry:
        return lambda version: Engine(name=version, kind="gpu", version=version)

    def find(version: str) -> Engine:
        if parse_version(version) is None and options.commits is not None:
            return engine_of_commit(version, Path(options.commits), say)
        return engine_named(version, say)

    return find


@dataclass(frozen=True, slots=True)
class Finished:
    """A bisection after a call. ``folder`` holds ``bisect.md``."""

    folder: Path
    results: tuple[Result, ...]

    @property
    def complete(self) -> bool:
        """Whether the last stage came to an end."""
        return bool(self.results) and self.results[-1].found is not None


def prepared_for(
    options: BisectOptions, engine_of: Callable[[str], Engine], wait_gpu_s: float = 0.0
) -> tuple[Prepared, Sought, list[str]]:
    """The checked configuration and what is sought.

    Args:
        engine_of: gives the ends.
        wait_gpu_s: how long to queue for a GPU that another gate holds.

    Raises:
        UsageFault: a metric that is not gated or that runs of the workload do not have; more than one profile or
            workload.
    """
    ends = engine_of(options.good), engine_of(options.bad)
    prepared, remarks = with_calibrations(options.bump, prepare(options.bump, ends, wait_gpu_s=wait_gpu_s))
    ask = prepared.ask
    if len(ask.profiles) != 1 or len(ask.workloads) != 1:
        raise UsageFault(
            f"a bisection judges one profile and one workload, not {len(ask.profiles)} and {len(ask.workloads)}",
            ["name them: --profile, --workload"],
        )
    profile, workload = ask.profiles[0], ask.workloads[0]
    better: Better = "higher"
    limit = 0.03
    if options.metric != FAILURE:
        gated = ask.limit(options.metric)
        check_sought(options.metric, (*ask.metrics, FAILURE), profile)
        better, limit = gated.better, gated.limit_percent / 100
    if options.limit_percent is not None:
        limit = options.limit_percent / 100
    sought = Sought(
        metric=options.metric,
        better=better,
        limit=limit,
        profile=profile,
        workload=workload,
        runs_per_arm=ask.runs_per_arm,
        blocks_max=ask.blocks_max,
        launches=options.launches,
        together=ask.pairing != "apart",
        seed=ask.seed,
        history=ask.histories.get((profile.name, workload.name, options.metric)),
    )
    return prepared, sought, remarks


def bisect(
    options: BisectOptions, folder: Path, *, minutes: float | None, wait_gpu_s: float, say: Say
) -> Finished:
    """Search until found or until the budget is spent, and write the log.

    Args:
        folder: of the bisection; goes on with what it holds.
        minutes: GPU minutes of this call.

    Raises:
        TokgateError: wrong options, a host that cannot measure, a good end that fails.
    """
    engine_of = engine_source(options, say)
    versions = candidates(options)
    dropped = left_out(options.good, options.bad, options.versions)
    prepared, sought, remarks = prepared_for(options, engine_of, wait_gpu_s)
    for line in dropped:
        say(line)
    results: list[Result] = []
    stages: list[Stage] = []
    setup = prepared.setup
    with claim(setup), measured_into(folder):
        begun = (folder / FILE).is_file()
        ends = {"good": prepared.ask.old, "bad": prepared.ask.new}
        remarks += keep_place(folder, setup.host_classes, ends, driver(setup.engine), begun=begun)
        options.write(folder)
        try:
            result = _stage("versions", versions, engine_of, prepared, sought, folder, minutes, say)
            results.append(result)
            stages.append(stage("versions", result, None))
            found = result.found
            by_release = parse_version(versions[0]) is not None
            if found is not None and found.first_bad is not None and options.commits and by_release:
                listed = commits(Path(options.commits), found.last_good, found.first_bad)
                say(f"{len(listed) - 1} commits between {found.last_good} and {found.first_bad}")
                left = None if minutes is None else minutes - result.seconds / 60
                inner = _stage("commits", listed, engine_of, prepared, sought, folder, left, say)
                results.append(inner)
                stages.append(stage("commits", inner, Path(options.commits)))
        finally:
            again = "" if results and results[-1].found else _again(options, folder)
            write_text(
                folder / "bisect.md",
                log(_title(options), _header(prepared, sought, [*dropped, *remarks]), stages, again),
            )
    return Finished(folder, tuple(results))


def _stage(
    name: str,
    versions: Sequence[str],
    engine_of: Callable[[str], Engine],
    prepared: Prepared,
    sought: Sought,
    folder: Path,
    minutes: float | None,
    say: Say,
) -> Result:
    below = folder / name
    below.mkdir(parents=True, exist_ok=True)
    prober = Prober(
        sought,
        engine_of(versions[0]),
        engine_of,
        benches(prepared.setup, below, ()),
        below,
        minutes=minutes,
        say=say,
    )
    return Bisection(versions, sought, prober, below, say).run()


def rehearse(options: BisectOptions) -> list[str]:
    """What a bisection would do; starts nothing."""
    prepared, sought, remarks = prepared_for(options, engine_source(options, lambda line: None, dry=True))
    versions = candidates(options)
    ends = 2 if options.metric == FAILURE else 1
    return [
        *_header(prepared, sought, [*left_out(options.good, options.bad, options.versions), *remarks]),
        f"{len(versions)} versions: {', '.join(versions)}",
        f"at most {steps_at_most(len(versions)) + ends} steps when none is skipped: "
        f"{'both ends' if ends == 2 else 'the bad end'}, then {steps_at_most(len(versions))} between",
        *prepared.notes,
    ]


def _header(prepared: Prepared, sought: Sought, remarks: Sequence[str]) -> list[str]:
    seeks = (
        f"a start or run that fails, in {sought.launches} launches"
        if sought.metric == FAILURE
        else f"{sought.metric} worse by {100 * sought.limit:g} % or more"
    )
    return [
        f"{sought.workload.name}[{sought.profile.name}] on {prepared.host_class}; sought: {seeks}; "
        f"each step against the good end, measured in the same blocks",
        *remarks,
    ]


def _title(options: BisectOptions) -> str:
    return f"Bisection of SGLang {options.good} (good) to {options.bad} (bad)"


def _again(options: BisectOptions, folder: Path) -> str:
    words = ["tokgate bisect", f"--resume {folder.name}"]
    if Path(options.bump.results) != Path("results"):
        words.append(f"--results {options.bump.results}")
    return " ".join(words)
