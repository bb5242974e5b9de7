"""``tokgate accept``: record a run as stored baselines. The only thing that writes baselines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer

from tokgate import __version__, accepting
from tokgate.analysis.voids import SOFT_CAUSES
from tokgate.cli.review import review_words
from tokgate.errors import UsageFault
from tokgate.gate.ending import UNTOLD
from tokgate.gate.results import RunFacts, find_run, read_facts, read_verdicts
from tokgate.gate.start import STARTUP, STARTUP_TOGETHER
from tokgate.gate.stored_run import samples_of
from tokgate.gate.words import count
from tokgate.host.fitness import dirty
from tokgate.load.sample import Sample
from tokgate.verdict import Kind, Verdict

app = typer.Typer(add_completion=False, rich_markup_mode=None)

# A run with one of these cannot become a baseline, whatever else it measured.
_SPOILING = {
    Kind.HANG,
    Kind.EXITED,
    Kind.NOT_SERVING,
    Kind.DIVERGED,
    Kind.NOT_REPLAYED,
    Kind.MISCONFIGURED,
    Kind.UNFIT,
}

_UNTOLD = f"{UNTOLD} (killed, or interrupted twice)"


@app.command()
def accept(
    run: Annotated[str, typer.Argument(help="a run's name or folder, or 'latest'")],
    reason: Annotated[str, typer.Option(help="why these figures are right, for who reviews them")],
    results: Annotated[Path, typer.Option(help="where runs are stored")] = Path("results"),
    stored: Annotated[Path, typer.Option("--baselines", help="where baselines are stored")] = Path(
        "baselines"
    ),
    new_epoch: Annotated[
        bool, typer.Option("--new-epoch", help="start a new level instead of adding a session")
    ] = False,
    profiles: Annotated[str | None, typer.Option(help="only these, comma-separated (default: all)")] = None,
    workloads: Annotated[str | None, typer.Option(help="only these, comma-separated (default: all)")] = None,
) -> None:
    """Record a run's Samples as one session of each baseline that it covers.

    Refused: a run with a failure or with planted faults, one on a host that others used, and cases with a
    void run in them.
    """
    folder = find_run(results, run)
    facts = read_facts(folder)
    verdicts = read_verdicts(folder)
    _check_untroubled(facts, verdicts)
    samples = samples_of(folder, facts)
    samples = _chosen(samples, lambda s: s.identity.profile, profiles, "profile", facts.run)
    samples = _chosen(samples, lambda s: s.identity.workload, workloads, "workload", facts.run)
    if facts.status != "complete":
        wanted = {sample.identity.profile for sample in samples} if profiles is not None else set()
        _check_unfinished(facts, verdicts, wanted)
    _refuse_void(samples, facts.run)
    startups = sorted(
        {m for s in samples if s.identity.workload in (STARTUP, STARTUP_TOGETHER) for m in s.metrics}
    )
    written = accepting.accept(
        stored,
        samples,
        # Not the folder's name: a copy of a run under another is no session of its own.
        run=facts.run,
        reason=reason,
        metrics=[*facts.gated_metrics, *startups],
        new_epoch=new_epoch,
        tokgate_version=__version__,
    )
    if facts.status != "complete":
        ended = {"running": "is still running", UNTOLD: _UNTOLD}.get(facts.status, f"was {facts.status}")
        print(f"note: the run {ended}; these profiles had been measured wholly before")
    if facts.samples is None:
        print(
            "note: run.json tells neither number nor digest of its samples: whether they are whole is not known"
        )
    for warning in facts.host_warnings or ():
        print(f"note: the host was warned of: {warning}")
    for path in written:
        print(f"wrote {path}")
    if facts.not_run:
        counts = Counter(name.partition("[")[0] for name in facts.not_run)
        said = ", ".join(f"{name} ({number})" for name, number in counts.items())
        print(
            f"not the whole gate: {len(facts.not_run)} tests were left out by selection and never ran: {said}"
        )
    print(f"{count(len(written), 'baseline')}; {review_words(stored)}")


def _check_untroubled(facts: RunFacts, verdicts: Sequence[Verdict]) -> None:
    """Raises:
    UsageFault: the run failed, had faults planted or a host that others used, or does not tell.
    """
    refused = f"run {facts.run} cannot be accepted"
    if spoiled := [v.line for v in verdicts if v.kind in _SPOILING]:
        raise UsageFault(refused, spoiled)
    wanted = len(verdicts) if facts.verdicts is None else facts.verdicts
    if facts.status == "complete":
        wanted = max(wanted, 1)
    if len(verdicts) != wanted:
        raise UsageFault(
            f"{refused}: it holds {len(verdicts)} of its {count(wanted, 'verdict')}, so nothing says "
            "that it did not fail"
        )
    if facts.engine_faults:
        raise UsageFault(
            f"{refused}: faults were planted in its engine",
            [f"--engine-fault={fault}" for fault in facts.engine_faults],
        )
    # Faults are planted in emulated engines alone.
    untold = [] if facts.host_warnings is not None else ["host_warnings"]
    untold += ["verdicts"] if facts.samples is not None and facts.verdicts is None else []
    untold += ["engine_faults"] if facts.engine_faults is None and facts.engine_kind == "emulated" else []
    if untold:
        raise UsageFault(f"{refused}: its run.json does not tell {' and '.join(untold)}")
    if others := dirty(facts.host_warnings or ()):
        raise UsageFault(
            f"{refused}: others used its host when it began",
            [*others, "measure again when they are gone: tokgate doctor tells"],
        )


def _chosen(
    samples: list[Sample], key: Callable[[Sample], str], names: str | None, what: str, run: str
) -> list[Sample]:
    """Samples of the profiles or workloads named; all when none is."""
    if names is None:
        return samples
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    if not wanted:
        raise UsageFault(f"--{what}s was given without a name; leave it out for all")
    unknown = wanted - {key(sample) for sample in samples}
    if unknown:
        raise UsageFault(f"run {run} holds no {what} {', '.join(sorted(unknown))}")
    return [sample for sample in samples if key(sample) in wanted]


def _disturbances(sample: Sample) -> set[str]:
    """Causes that void a run, and those that would have, had they not met nearly all of its case."""
    soft = {reason.cause for reason in sample.advisory if reason.cause in SOFT_CAUSES}
    return {reason.cause for reason in sample.void} | soft


def _refuse_void(samples: Sequence[Sample], run: str) -> None:
    """A void run says that the host was disturbed while its case was measured, the runs beside it included.

    Raises:
        UsageFault: names the cases with a void run, their causes, and the cases without one.
    """
    cases: dict[str, list[Sample]] = {}
    for sample in samples:
        cases.setdefault(f"{sample.identity.workload}[{sample.identity.profile}]", []).append(sample)
    void = {name: [s for s in runs if _disturbances(s)] for name, runs in cases.items()}
    lines = []
    for name, runs in ((name, runs) for name, runs in void.items() if runs):
        causes = Counter(cause for s in runs for cause in _disturbances(s))
        told = ", ".join(f"{cause} {number}x" for cause, number in causes.most_common())
        lines.append(f"{name}: {len(runs)} of {len(cases[name])} runs void: {told}")
    if not lines:
        return
    clean = [name for name, runs in void.items() if not runs]
    raise UsageFault(
        f"run {run} cannot be accepted: {sum(map(len, void.values()))} of its {len(samples)} runs are void",
        [
            *lines,
            f"without one: {', '.join(clean) or 'no case'}"
            + ("; choose with --profiles and --workloads" if clean else ""),
            "a level for later days is recorded on an undisturbed host alone: measure the others again",
        ],
    )


def _check_unfinished(facts: RunFacts, verdicts: Sequence[Verdict], wanted: Collection[str]) -> None:
    """Of a run that was cut short, profiles that are named may be accepted if all their runs were made.

    A verdict on a workload is reached when all its runs are; so is one on the start.

    Raises:
        UsageFault: none is named, or one was not measured wholly.
    """
    ended = _UNTOLD if facts.status == UNTOLD else f"is '{facts.status}'"
    refused = f"run {facts.run} cannot be accepted: it {ended}, not complete"
    cases = {(v.evidence.get("profile"), v.evidence.get("workload")) for v in verdicts}
    absent = {
        profile: [workload for workload in facts.workloads if (profile, workload) not in cases]
        for profile in facts.profiles
    }
    whole = [profile for profile, lacks in absent.items() if not lacks]
    if not wanted:
        ways = [f"measured wholly: {', '.join(whole)}", f"those alone: --profiles {','.join(whole)}"]
        raise UsageFault(refused, ways if whole else ["no profile was measured wholly"])
    if cut := [profile for profile in sorted(wanted) if absent.get(profile)]:
        raise UsageFault(refused, [f"{p}: not measured wholly: {', '.join(absent[p])}" for p in cut])
