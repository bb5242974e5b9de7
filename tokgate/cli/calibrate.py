"""``tokgate calibrate``: the scatter of block differences when nothing changed."""

from __future__ import annotations

import datetime
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokgate.analysis.percent import percent_text
from tokgate.errors import SampleFault, UsageFault
from tokgate.gate.blocks.plan import RUNS_PER_ARM
from tokgate.gate.words import count

if TYPE_CHECKING:
    from tokgate.analysis.calibration import Calibration, Session

ASSUMED_PERCENT = 3.0
LIMITS_FROM = "folder of the gate.yaml that has the metric's limit"

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Know the noise before judging by it.")


@app.command()
def run(
    blocks: Annotated[int, typer.Option(min=1, max=1000, help="A/A blocks of each profile")] = 20,
    profiles: Annotated[str | None, typer.Option(help="only these, comma-separated (default: all)")] = None,
    workloads: Annotated[
        str | None, typer.Option(help="only these, comma-separated (default: those of the engine)")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="engine.yaml, a made environment, or emulated[:SCENARIO]")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="model of profiles.yaml, or folder with target/ and draft/")
    ] = None,
    runs: Annotated[
        int, typer.Option(min=1, max=1000, help="runs of a workload on each launch")
    ] = RUNS_PER_ARM,
    budget_minutes: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="begin no block that would not end within, but a profile's first, whose length is not known",
        ),
    ] = None,
    config_folder: Annotated[Path, typer.Option(help="where the YAML files stand")] = Path("perf_tests"),
    results: Annotated[Path, typer.Option(help="where sessions are stored")] = Path("results"),
    stored: Annotated[Path, typer.Option("--baselines", help="where calibrations are stored")] = Path(
        "baselines"
    ),
    wait_gpu_s: Annotated[float, typer.Option(help="queue for a GPU held by another gate")] = 0.0,
    engine_flag: Annotated[list[str] | None, typer.Option(help="passed to the engine as is")] = None,
) -> None:
    """Measure A/A blocks on this host: each profile against itself, launched again for every block.

    A session that was cut short is taken up by the next call that asks for the same, --blocks too. A finished one is
    not added to: the next call begins another, and verdicts use the blocks of all.
    """
    from tokgate.gate import setup as gate_setup
    from tokgate.gate.blocks.calibrating import calibrate
    from tokgate.gate.claim import claim

    setup = gate_setup.read(
        gate_setup.Request(
            folder=config_folder,
            results=results,
            baselines=stored,
            engine=engine,
            profiles=_names(profiles, "--profiles"),
            workloads=_names(workloads, "--workloads"),
            model=model,
            wait_gpu_s=wait_gpu_s,
            engine_flags=tuple(engine_flag or ()),
        )
    )
    for line in setup.header()[:1]:
        print(line)
    wanted = [name for name in setup.request.profiles or setup.profiles if name not in setup.not_applicable]
    if not wanted:
        raise UsageFault("none of these profiles exists on this engine", list(setup.not_applicable.values()))
    # Asked to end: the servers are stopped first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with claim(setup) as warnings:
        for warning in warnings:
            print(f"note: {warning}")
        try:
            done = calibrate(setup, wanted, blocks=blocks, runs_per_arm=runs, minutes=budget_minutes)
        except Exception:
            raise
        except BaseException:
            # A signal: Ctrl-C, SIGTERM, SIGHUP.
            print("whole blocks are kept; go on: the same command again", file=sys.stderr)
            raise
    short = [item for item in done if item.blocks < item.asked]
    for item in done:
        print(
            f"{item.profile}: {item.blocks} of {count(item.asked, 'block')}, "
            f"{count(len(item.files), 'calibration')}; {item.folder}"
        )
        for path in item.files:
            describe_shortly(path)
        for remark in item.remarks:
            print(f"  note: {remark}")
    if short:
        print(f"budget spent: {len(short)} of {len(done)} profiles are not done; the same command goes on")
        raise typer.Exit(3)


def describe_shortly(path: Path) -> None:
    """One line: how much block differences scatter."""
    from tokgate.analysis.calibration_file import read_calibration

    found = read_calibration(path)
    history = found.history()
    scatter = "no scatter at all" if history is None else f"s0 = {percent_text(history.s0)}"
    size = count(sum(len(s.blocks) for s in found.sessions), "block")
    print(f"  {found.name}: {scatter}, {size}")


def _names(text: str | None, option: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
    if text is not None and not names:
        raise UsageFault(f"{option} was given without a name; leave it out for all")
    return names


@app.command()
def pool(
    samples: Annotated[Path, typer.Argument(help="Samples of one build, an even number of launches")],
    out: Annotated[Path, typer.Option(help="calibration file, made or added to")],
    metric: Annotated[str, typer.Option(help="which metric of the Samples")] = "output_tok_s",
    better: Annotated[str | None, typer.Option(help="higher or lower; known for the usual metrics")] = None,
    config_folder: Annotated[Path, typer.Option(help=LIMITS_FROM)] = Path("perf_tests"),
) -> None:
    """Add stored launches of one build to a calibration, paired in the order measured."""
    from tokgate.analysis.calibration import KNOWN_OF_SAMPLES, AABlock, Calibration, Session
    from tokgate.analysis.calibration_file import write_calibration
    from tokgate.cli.measurements import read
    from tokgate.host.stored_file import held

    # Before anything is written: a faulty gate.yaml leaves the calibration as it is.
    wanted = loss(metric, config_folder)
    series = read(samples, metric, better)
    if series.identity is None:
        raise SampleFault(
            f"{samples}: a calibration needs Samples, which say host class, profile and workload"
        )
    if len(series.launches) < 2:
        raise SampleFault(f"{samples}: {len(series.launches)} launch; an A/A block is two of the same build")
    who = series.identity
    found = Calibration(
        who.host_class,
        who.profile,
        who.workload,
        metric,
        series.unit,
        series.better,
        identity={key: str(getattr(who, key)) for key in KNOWN_OF_SAMPLES},
    )
    pairs = zip(series.launches[0::2], series.launches[1::2], strict=False)
    session = Session(who.started_at, tuple(AABlock(a, b) for a, b in pairs))
    with held(out.parent):
        whole = _stored(out, found, session).with_session(session)
        write_calibration(out, whole)
    print(f"{count(len(session.blocks), 'A/A block')} added")
    if len(series.launches) % 2:
        print("note: the last launch has no counterpart and is left out")
    describe(whole, wanted)


def _stored(out: Path, found: Calibration, session: Session) -> Calibration:
    """The calibration that the session is to be added to: the stored one, or ``found``, which holds none.

    Raises:
        SampleFault: the stored one is of something else, or holds this session already.
    """
    from tokgate.analysis.calibration_file import read_calibration

    if not out.exists():
        return found
    old = read_calibration(out)
    for key in ("host_class", "profile", "workload", "metric", "unit", "better"):
        if getattr(old, key) != getattr(found, key):
            raise SampleFault(f"{out} is of {key} '{getattr(old, key)}', not '{getattr(found, key)}'")
    if differing := old.differences(found.identity):
        raise SampleFault(f"{out} is of something else: {differing[0]}")
    if unsaid := old.identity.keys() - found.identity.keys():
        # How launches stood beside each other that were not measured as blocks, nobody knows.
        said = ", ".join(f"{key}: {old.identity[key]}" for key in sorted(unsaid))
        raise SampleFault(
            f"{out} says of its sessions: {said}; of pooled launches that is not known: name another file"
        )
    if any(item.started_at == session.started_at for item in old.sessions):
        raise SampleFault(f"{out} holds these launches already (session {session.started_at})")
    return old


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="calibration file")],
    limit_percent: Annotated[
        float | None,
        typer.Option(min=0.1, max=99, help="the loss to be found (default: the metric's limit in gate.yaml)"),
    ] = None,
    verdicts: Annotated[int, typer.Option(min=1, help="verdicts that share alpha 0.01")] = 40,
    config_folder: Annotated[Path, typer.Option(help=LIMITS_FROM)] = Path("perf_tests"),
) -> None:
    """What a calibration says, and what the gate can find with it."""
    from tokgate.analysis.calibration_file import read_calibration

    found = read_calibration(file)
    given = None if limit_percent is None else Loss(limit_percent, "as given")
    describe(found, given or loss(found.metric, config_folder), verdicts)


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss to be found, percent, and where it is from."""

    percent: float
    source: str


def loss(metric: str, folder: Path) -> Loss:
    """The metric's limit in the folder's ``gate.yaml``; where that has none, an assumed one that says so.

    Raises:
        ConfigFault: ``gate.yaml`` is faulty.
    """
    from tokgate.config.gate import load_gate

    path = folder / "gate.yaml"
    if not path.is_file():
        return Loss(ASSUMED_PERCENT, f"assumed: there is no {path}")
    limit = load_gate(path).metrics.get(metric)
    if limit is None:
        return Loss(ASSUMED_PERCENT, f"assumed: {path} has no limit for {metric}")
    return Loss(limit.limit_percent, f"{path}")


def describe(calibration: Calibration, wanted: Loss, verdicts: int = 40) -> None:
    """Print a calibration and the power it gives."""
    from tokgate.analysis.looks import ENOUGH_BLOCKS, Plan
    from tokgate.analysis.multiplicity import alpha_per_verdict
    from tokgate.analysis.power import power_curve

    history = calibration.history()
    blocks = sum(len(item.blocks) for item in calibration.sessions)
    print(
        f"{calibration.metric} {calibration.workload}[{calibration.profile}] on {calibration.host_class}: "
        f"{count(blocks, 'A/A block')} in {count(len(calibration.sessions), 'session')}"
    )
    for remark in calibration.remarks(datetime.datetime.now(datetime.UTC)):
        print(f"note: {remark}")
    if history is None:
        print("no two launches differed: there is no scatter to judge by")
        return
    print(f"scatter of a block difference s0 = {percent_text(history.s0)}")
    print(f"loss to be found {wanted.percent:g} % ({wanted.source})")
    limit = wanted.percent / 100
    if limit >= 1:
        print("the power to find a loss of 100 % or more is not reckoned")
        return
    plan = Plan(limit, calibration.better, alpha_per_verdict(0.01, verdicts))
    known = history if history.blocks >= ENOUGH_BLOCKS else None
    sign = -1 if calibration.better == "higher" else 1
    for point in power_curve([0.0, sign * limit, sign * 2 * limit], history.s0, plan, known, series=400):
        print(
            f"true change {100 * point.change:+.1f} %: REGRESSION {100 * point.regression:.0f} %, "
            f"PASS {100 * (point.passed + point.improved):.0f} %, undecided {100 * point.undecided:.0f} %, "
            f"{point.blocks:.1f} blocks on average"
        )
