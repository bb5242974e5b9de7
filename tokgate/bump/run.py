"""One call of ``tokgate bump``: a folder, a campaign in it, reports at its end whatever ended it."""

from __future__ import annotations

import datetime
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokgate import __version__
from tokgate.bump.campaign import Campaign
from tokgate.bump.costs import histories
from tokgate.bump.engines import engine_named
from tokgate.bump.options import FILE, BumpOptions, Prepared, prepare
from tokgate.bump.outcome import report_of
from tokgate.bump.place import keep_place
from tokgate.bump.question import BumpAsk
from tokgate.bump.servers import benches
from tokgate.bump.stack import Stack, read_stack
from tokgate.config.profiles import Profile
from tokgate.errors import SampleFault, UsageFault
from tokgate.gate import modelstore
from tokgate.gate.blocks.calibrations import form
from tokgate.gate.cards import driver
from tokgate.gate.claim import claim
from tokgate.gate.results import write_text
from tokgate.gate.setup import Setup
from tokgate.gate.start import STARTUP, model_of
from tokgate.gate.words import count
from tokgate.host.stored_file import measured_into
from tokgate.report.bump_html import page
from tokgate.report.bump_junit import junit
from tokgate.report.bump_markdown import comment
from tokgate.report.bump_record import BumpReport

Say = Callable[[str], None]
PREFIX = "bump-"


@dataclass(frozen=True, slots=True)
class Finished:
    """A bump after a call.

    Attributes:
        folder: with ``report.md``, ``report.html``, ``report.json``, ``junit.xml``.
    """

    folder: Path
    report: BumpReport


def new_folder(results: Path, prefix: str = PREFIX) -> Path:
    """Where a new bump (or bisection) goes; made by whoever writes first."""
    now = datetime.datetime.now(datetime.UTC)
    return results / f"{prefix}{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def find_folder(results: Path, name: str, prefix: str = PREFIX) -> Path:
    """A bump by name, by path, or ``latest``.

    Raises:
        SampleFault: no such bump; names those that exist.
    """
    known = sorted(path.parent for path in results.glob(f"{prefix}*/{prefix.rstrip('-')}.json"))
    if name == "latest" and known:
        return known[-1]
    for candidate in (results / name, Path(name)):
        if (candidate / f"{prefix.rstrip('-')}.json").is_file():
            return candidate
    listed = ", ".join(path.name for path in known[-10:]) or "none"
    raise SampleFault(f"no {prefix.rstrip('-')} '{name}' in {results}", [f"there: {listed}"])


def with_calibrations(options: BumpOptions, prepared: Prepared) -> tuple[Prepared, list[str]]:
    """With the histories that are stored for this host class, and what to say of them.

    Raises:
        UsageFault: a named calibration is not there.
    """
    for path in options.calibrations:
        if not Path(path).exists():
            raise UsageFault(f"--calibration {path}: no such file or folder")
    stored = Path(options.baselines) / prepared.host_class / "calibration"
    folders = [Path(path) for path in options.calibrations] or [stored]
    found, remarks = histories(_identities(options, prepared), folders, prepared.host_class)
    return prepared.with_histories(found), remarks


def _identities(options: BumpOptions, prepared: Prepared) -> dict[tuple[str, str], dict[str, str]]:
    """What a calibration must say of itself to hold here, by profile and workload."""
    ask = prepared.ask
    common = {"engine": ask.old.kind, "block": form(ask.runs_per_arm, ask.pairing != "apart")}
    digests = {STARTUP: "", **{workload.name: workload.digest for workload in ask.workloads}}
    return {
        (profile.name, workload): {
            **common,
            "model": _model(prepared.setup, prepared.setup.profiles[profile.name]),
            # As configured: bounds of memory for servers that are up at once are not the calibration's.
            "profile_digest": prepared.setup.profiles[profile.name].digest,
            "workload_digest": digest,
        }
        for profile in ask.profiles
        for workload, digest in digests.items()
    }


def _model(setup: Setup, profile: Profile) -> str:
    if setup.engine.kind == "emulated":
        return ""
    model = model_of(setup, profile)
    return modelstore.identity(model.resolve()) if isinstance(model, Path) else modelstore.foretold(model)


def measure(
    options: BumpOptions, folder: Path, *, minutes: float | None, wait_gpu_s: float, say: Say
) -> Finished:
    """Measure until decided or until the budget is spent, and write the reports.

    Args:
        folder: of the bump; goes on with what it holds.
        minutes: wall-clock budget of this call.
        say: told of progress, a line at a time.

    Raises:
        TokgateError: wrong options, a host that cannot measure; the reports are written all the same where
            something was measured.
    """
    engines = engine_named(options.old, say), engine_named(options.new, say)
    prepared, remarks = with_calibrations(options, prepare(options, engines, wait_gpu_s=wait_gpu_s))
    ask = prepared.ask
    with claim(prepared.setup) as warnings, measured_into(folder):
        setup = prepared.setup
        begun = (folder / FILE).is_file()
        engines_of = {"old": ask.old, "new": ask.new}
        remarks += keep_place(folder, setup.host_classes, engines_of, driver(setup.engine), begun=begun)
        options.write(folder)
        stacks = read_stack(ask.old), read_stack(ask.new)
        _keep_locks(folder, stacks)
        campaign = Campaign(ask, benches(setup, folder, options.parity), folder / "blocks")
        told = [*remarks, *prepared.notes, *(f"host: {line}" for line in warnings)]
        try:
            campaign.run(minutes=minutes, say=say)
        finally:
            # Interrupted or not: what was measured is told.
            report = report_of(
                campaign,
                header=header(ask, prepared.host_class, folder),
                stacks=stacks,
                again=again(options, folder),
                remarks=told,
                parity=options.parity,
            )
            write_reports(folder, report)
    return Finished(folder, report)


def header(ask: BumpAsk, host_class: str, folder: Path) -> list[str]:
    """What was run, on what."""
    names = ", ".join(profile.name for profile in ask.profiles)
    work = ", ".join(workload.name for workload in ask.workloads)
    up = {"all": "all servers", "pair": "both versions of a profile", "apart": "one server"}[ask.pairing]
    return [
        f"old: {ask.old.name} ({ask.old.kind}, SGLang {ask.old.version}); new: {ask.new.name} "
        f"({ask.new.kind}, SGLang {ask.new.version}); host class {host_class}",
        f"profiles {names}; workloads {work}; {count(ask.runs_per_arm, 'run')} a launch, {up} up at once, "
        f"seed {ask.seed}",
        f"alpha {ask.alpha:.2g} a verdict, at most {ask.blocks_max} blocks a profile; results: {folder}; "
        f"tokgate {__version__}",
    ]


def again(options: BumpOptions, folder: Path) -> str:
    """The command that goes on; defaults left out."""
    words = ["tokgate bump", f"--resume {folder.name}"]
    if Path(options.results) != Path("results"):
        words.append(f"--results {options.results}")
    return " ".join([*words, "--budget-minutes MINUTES"])


def write_reports(folder: Path, report: BumpReport) -> None:
    """All formats.

    Raises:
        ResultsUnwritable: disk full or folder gone.
    """
    write_text(folder / "report.json", json.dumps(report.to_json(), indent=1) + "\n")
    write_text(folder / "report.md", comment(report))
    write_text(folder / "junit.xml", junit(report))
    write_text(folder / "report.html", page(report))


def _keep_locks(folder: Path, stacks: Sequence[Stack]) -> None:
    for side, stack in zip(("old", "new"), stacks, strict=True):
        text = stack.lock() if stack.packages else f"# not known: {stack.unknown}\n"
        write_text(folder / f"{side}.lock.txt", text)
