"""``tokgate accept``: record a run as stored baselines. The only thing that writes baselines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tokgate import __version__, baselines
from tokgate.errors import UsageFault
from tokgate.gate.results import find_run, read_run, read_verdicts
from tokgate.gate.start import STARTUP, STARTUP_TOGETHER
from tokgate.load.sample import read_samples
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
) -> None:
    """Record a run's Samples as one session of each baseline that it covers."""
    folder = find_run(results, run)
    facts = read_run(folder)
    verdicts = read_verdicts(folder)
    spoiled = [v.line for v in verdicts if v.kind in _SPOILING]
    if spoiled:
        raise UsageFault(f"run {folder.name} cannot be accepted", spoiled)
    if profiles is not None and not profiles.strip(", "):
        raise UsageFault("--profiles was given without a name; leave it out for all")
    wanted = {name.strip() for name in (profiles or "").split(",") if name.strip()}
    if facts["status"] != "complete":
        _check_unfinished(folder.name, facts, verdicts, wanted)
    samples = read_samples(folder / "samples")
    unknown = wanted - {sample.identity.profile for sample in samples}
    if unknown:
        raise UsageFault(f"run {folder.name} holds no profile {', '.join(sorted(unknown))}")
    samples = [s for s in samples if not s.void and (not wanted or s.identity.profile in wanted)]
    startups = sorted(
        {m for s in samples if s.identity.workload in (STARTUP, STARTUP_TOGETHER) for m in s.metrics}
    )
    written = baselines.accept(
        stored,
        samples,
        run=folder.name,
        reason=reason,
        metrics=[*facts["gated_metrics"], *startups],
        new_epoch=new_epoch,
        tokgate_version=__version__,
    )
    if facts["status"] != "complete":
        print(f"note: the run was {facts['status']}; these profiles had been measured wholly before")
    for warning in facts.get("host_warnings") or ():
        print(f"note: the host was warned of: {warning}")
    for path in written:
        print(f"wrote {path}")
    if not_run := facts.get("not_run", []):
        counts = Counter(name.partition("[")[0] for name in not_run)
        said = ", ".join(f"{name} ({number})" for name, number in counts.items())
        print(f"not the whole gate: {len(not_run)} tests were left out by selection and never ran: {said}")
    print(f"{len(written)} baselines; review with: git diff {stored}")


def _check_unfinished(
    name: str, facts: Mapping[str, Any], verdicts: Sequence[Verdict], wanted: Collection[str]
) -> None:
    """Of a run that was cut short, profiles that are named may be accepted if all their runs were made.

    A verdict on a workload is reached when all its runs are; so is one on the start.

    Raises:
        UsageFault: none is named, or one was not measured wholly.
    """
    refused = f"run {name} cannot be accepted: it is '{facts['status']}', not complete"
    cases = {(v.evidence.get("profile"), v.evidence.get("workload")) for v in verdicts}
    absent = {
        profile: [workload for workload in facts["workloads"] if (profile, workload) not in cases]
        for profile in facts["profiles"]
    }
    whole = [profile for profile, lacks in absent.items() if not lacks]
    if not wanted:
        ways = [f"measured wholly: {', '.join(whole)}", f"those alone: --profiles {','.join(whole)}"]
        raise UsageFault(refused, ways if whole else ["no profile was measured wholly"])
    if cut := [profile for profile in sorted(wanted) if absent.get(profile)]:
        raise UsageFault(refused, [f"{p}: not measured wholly: {', '.join(absent[p])}" for p in cut])
