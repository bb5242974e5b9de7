"""``tokgate judge A.json B.json``: judge stored measurements, with no GPU and no server."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tokgate.analysis import series as stored
from tokgate.analysis.blocks import Block, level, pair
from tokgate.analysis.bootstrap import judge_requests
from tokgate.analysis.calibration import KNOWN_OF_SAMPLES
from tokgate.analysis.calibration_file import read_calibration
from tokgate.analysis.decision import Decision
from tokgate.analysis.exact import judge_counts
from tokgate.analysis.interval import ratio_interval
from tokgate.analysis.multiplicity import alpha_per_verdict
from tokgate.analysis.percent import detectable_text, percent_text
from tokgate.analysis.sequential import History, Plan, judge
from tokgate.cli.measurements import are_the_same, read
from tokgate.cli.resuming import percent
from tokgate.errors import SampleFault, UsageFault
from tokgate.gate.words import count
from tokgate.verdict import Kind, Verdict, exit_code

if TYPE_CHECKING:
    from tokgate.analysis.interval import Ratio

app = typer.Typer(add_completion=False)
USUAL = "output_tok_s"


@app.command()
def command(
    reference: Annotated[Path, typer.Argument(help="A: Samples (file or folder) or a list of launches")],
    candidate: Annotated[Path, typer.Argument(help="B: the same, of the build in question")],
    metric: Annotated[
        str | None, typer.Option(help="which metric of the Samples; output_tok_s when not given")
    ] = None,
    better: Annotated[str | None, typer.Option(help="higher or lower; known for the usual metrics")] = None,
    limit_percent: Annotated[float, typer.Option(help="the loss that fails, percent")] = 3.0,
    alpha: Annotated[float, typer.Option(help="chance of any false alarm in the whole run")] = 0.01,
    beta: Annotated[float, typer.Option(help="chance to miss a loss of the limit")] = 0.05,
    verdicts: Annotated[int, typer.Option(min=1, help="verdicts that share alpha")] = 1,
    blocks_max: Annotated[int, typer.Option(min=3, help="block at which the last test is made")] = 40,
    calibration: Annotated[Path | None, typer.Option(help="file written by tokgate calibrate")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Judge build B against build A from stored measurements.

    A file holds Samples as the gate stores them, or {"unit", "better", "launches": [[...], ...]} with the
    runs of each launch. Launches are paired in the order measured; a pair is a block. With one launch a side
    a noisy metric can only be INCONCLUSIVE as to the build. Exit code 3 when undecided.
    """
    if better not in (None, "higher", "lower"):
        raise UsageFault(f"--better is higher or lower, not '{better}'")
    if are_the_same(reference, candidate):
        raise UsageFault(
            f"A and B are the same: {reference} and {candidate}; "
            "a build is judged against another's measurements"
        )
    name = metric or USUAL
    a, b = (read(path, name, better) for path in (reference, candidate))
    for path, series in ((reference, a), (candidate, b)):
        if metric is not None and series.identity is None:
            raise UsageFault(
                f"--metric {metric}: {path} holds launches of one metric, which has no name there"
            )
    verdict = verdict_of(
        a,
        b,
        name,
        plan_of(limit_percent, a.better, alpha, beta, verdicts, blocks_max),
        read_history(calibration, a, name),
    )
    if as_json:
        print(json.dumps({"verdict": str(verdict.kind), "line": verdict.line, **verdict.evidence}, indent=2))
    else:
        print(verdict.text())
    raise typer.Exit(exit_code([verdict]))


def plan_of(
    limit_percent: float,
    better: Literal["higher", "lower"],
    alpha: float,
    beta: float,
    verdicts: int,
    blocks_max: int,
) -> Plan:
    """The plan from the options.

    Raises:
        UsageFault: an option that means nothing.
    """
    percent("--limit-percent", limit_percent)
    try:
        return Plan(limit_percent / 100, better, alpha_per_verdict(alpha, verdicts), beta, blocks_max)
    except ValueError as error:
        raise UsageFault(str(error)) from error


def read_history(path: Path | None, series: stored.Series, metric: str) -> History | None:
    """The history of a calibration file, which must be of what is judged.

    Raises:
        SampleFault: not a calibration, or of another metric, host class, profile or model.
    """
    if path is None:
        return None
    found = read_calibration(path)
    asked = {"better": series.better, "unit": series.unit}
    if series.identity is not None:
        asked |= {
            "metric": metric,
            "host_class": series.identity.host_class,
            "profile": series.identity.profile,
            "workload": series.identity.workload,
        }
    for key, value in asked.items():
        if getattr(found, key) != value:
            raise SampleFault(f"{path}: calibration of {key} '{getattr(found, key)}', judged is '{value}'")
    if series.identity is not None:
        differing = found.differences({key: str(getattr(series.identity, key)) for key in KNOWN_OF_SAMPLES})
        if differing:
            raise SampleFault(f"{path}: the calibration is of something else: {differing[0]}", differing[1:])
    return found.history()


def verdict_of(
    a: stored.Series, b: stored.Series, metric: str, plan: Plan, history: History | None
) -> Verdict:
    """The verdict on two series of one metric."""
    name = metric if a.identity is not None else (a.unit or "value")
    # Named after what is judged; what it is held against is told apart where it is another case.
    who = b.identity or a.identity
    subject = f"{who.workload}[{who.profile}]" if who is not None else "launches"
    reasons = stored.incomparable(a, b)
    if reasons:
        return Verdict(
            Kind.INCOMPARABLE, subject, f"{name}: {'; '.join(reasons)}", evidence={"reasons": reasons}
        )
    decision, blocks, unused = decide(a, b, plan, history)
    servers = ratio_interval(b.runs, a.runs)
    body = _against(a, b) + [f"note: {note}" for note in decision.notes]
    body += _figures(decision, plan)
    if decision.n == 1 and blocks:
        means = f"{servers.numerator_mean:.4g} vs {servers.denominator_mean:.4g}"
        body.append(f"of the servers measured, all runs: {means}, {servers.text()}")
    if unused:
        body.append(f"not used: {count(unused, 'launch', 'launches')} without a counterpart")
    if a.void or b.void:
        body.append(f"void runs left out: {a.void} of A, {b.void} of B")
    body += _trimmed(blocks)
    return Verdict(
        Kind(decision.kind),
        subject,
        f"{name}: {_headline(decision, a, b, blocks, plan)}",
        body=tuple(body),
        evidence=_evidence(decision, blocks, servers, a, b, plan),
    )


def decide(
    a: stored.Series, b: stored.Series, plan: Plan, history: History | None
) -> tuple[Decision, list[Block], int]:
    """Decision, the blocks it rests on (none where counts were compared), and launches left over."""
    if a.counts and b.counts:
        exact = judge_counts(a.counts, b.counts, limit=plan.limit)
        found = exact or judge_requests(
            a.counts, b.counts, limit=plan.limit, alpha=plan.alpha, beta=plan.beta
        )
        return found, [], 0
    shared = min(len(a.launches), len(b.launches))
    blocks = pair(a.launches[:shared], b.launches[:shared], a.better)
    decision = judge([item.difference for item in blocks], plan, history)
    return decision, blocks, len(a.launches) + len(b.launches) - 2 * shared


def _headline(decision: Decision, a: stored.Series, b: stored.Series, blocks: list[Block], plan: Plan) -> str:
    if blocks:
        # The levels whose ratio is the change: trimmed means, averaged over blocks on the log scale.
        mean_a, mean_b = (level(blocks, candidate=side) for side in (False, True))
    else:
        mean_a, mean_b = (sum(item.runs) / len(item.runs) for item in (a, b))
    unit = f" {a.unit}" if a.unit else ""
    sign = "-" if plan.better == "higher" else "+"
    how = count(len(blocks), "block") if blocks else decision.method
    return (
        f"{mean_b:.4g} vs {mean_a:.4g}{unit}, {decision.change_text()}, {how}, "
        f"limit {sign}{100 * plan.limit:.1f} %"
    )


def _against(a: stored.Series, b: stored.Series) -> list[str]:
    """What B is held against, where that is not the same case."""
    if a.identity is None or b.identity is None:
        return []
    shared = stored.shared_launches(a, b)
    lines = [f"both sides hold runs of launch {shared[0]}: held against itself?"] if shared else []
    if (a.identity.workload, a.identity.profile) != (b.identity.workload, b.identity.profile):
        lines.append(f"compared with {a.identity.workload}[{a.identity.profile}]")
    elif a.identity.profile_digest != b.identity.profile_digest:
        lines.append("compared with a profile of the same name and other settings")
    if a.identity.sglang_version != b.identity.sglang_version:
        lines.append(f"SGLang {b.identity.sglang_version} against {a.identity.sglang_version}")
    return lines


def _figures(decision: Decision, plan: Plan) -> list[str]:
    known = "no calibration" if decision.s0 is None else f"known from calibration {percent_text(decision.s0)}"
    lines = [f"scatter now {percent_text(decision.s)}, {known}"]
    least = decision.smallest_detectable
    lines.append(
        f"smallest loss found with {100 * (1 - plan.beta):.0f} % chance: {detectable_text(least)}"
        if least is not None
        else "smallest loss that could be found: unknown (too few blocks)"
    )
    if decision.kind == "INCONCLUSIVE":
        needed = decision.blocks_needed
        lines.append(
            f"further blocks needed: {'cannot be foretold' if needed is None else f'about {needed}'}"
        )
    return lines


def _trimmed(blocks: list[Block]) -> list[str]:
    arms = [arm for item in blocks for arm in (item.reference, item.candidate)]
    dropped = sum(len(arm.dropped) for arm in arms)
    if not dropped:
        return []
    worst = min((arm.tail if arm.tail < 1 else 1 / arm.tail) for arm in arms)
    return [
        f"slowest runs trimmed: {dropped} of {sum(len(arm.runs) for arm in arms)}, the worst at {worst:.2f}x"
    ]


def _evidence(
    decision: Decision,
    blocks: list[Block],
    servers: Ratio,
    a: stored.Series,
    b: stored.Series,
    plan: Plan,
) -> dict[str, Any]:
    data = decision.to_json()
    data.pop("verdict")
    data["interval"] = None if decision.interval is None else list(decision.interval)
    data["notes"] = list(decision.notes)
    told = asdict(servers)
    if servers.high == float("inf"):
        told["low"] = told["high"] = None
    return {
        **data,
        "unit": a.unit,
        "better": a.better,
        "alpha": plan.alpha,
        "beta": plan.beta,
        "block_ratios": [item.candidate.value / item.reference.value for item in blocks],
        "servers": told,
        "void_runs": {"reference": a.void, "candidate": b.void},
    }
