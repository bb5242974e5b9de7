"""A decision from blocks as a verdict: line 1 says metric, candidate against reference, change, blocks, limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokgate.analysis.blocks import level, pair
from tokgate.analysis.decision import Decision
from tokgate.analysis.percent import NOT_YET, detectable_text
from tokgate.gate.blocks.deciding import Question
from tokgate.gate.blocks.runner import BlockRunner
from tokgate.gate.words import count, figure, figures
from tokgate.verdict import Kind, Verdict

SHOWN_FILES = 3

Claim = Literal["build", "gain", "no loss"]
"""``build``: not slower than the reference build (loss: REGRESSION). Of a profile (loss: NET_LOSS): ``gain``: faster
than the other; ``no loss``: faster, or any difference surely below the limit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A question that blocks were measured for.

    Attributes:
        before: the verdict that was open.
        runner: of arms A (the reference) and B.
        unit: of the metric.
        reference: what A is, in words.
        notes: for the reader.
        claim: what is asked of B.
        alpha: of the verdict.
    """

    before: Verdict
    runner: BlockRunner
    question: Question
    decision: Decision
    unit: str
    reference: str
    notes: tuple[str, ...]
    claim: Claim
    alpha: float


def _next_command(kind: Kind, before: Verdict) -> str | None:
    """What was advised before, where it still holds: a build that lost is no baseline."""
    good = kind in (Kind.PASS, Kind.IMPROVED)
    holds = good if before.kind is Kind.MISSING else kind is not Kind.PASS
    return before.next_command if holds else None


def answered(answer: Answer) -> Verdict:
    """The verdict: REGRESSION, IMPROVED, PASS of a build, or NET_LOSS, PASS of a profile; or still open."""
    decision, question, before = answer.decision, answer.question, answer.before
    a, b = (answer.runner.launches(arm, question.workload, question.metric) for arm in ("A", "B"))
    blocks = pair(a, b, question.plan.better)[: decision.n]
    now, reference = (level(blocks, candidate=side) for side in (True, False))
    kind = Kind(decision.kind) if answer.claim == "build" else of_profile(decision, answer.claim)
    limit = 100 * question.plan.limit
    loss = -decision.change if question.plan.better == "higher" else decision.change
    sign = "-" if question.plan.better == "higher" else "+"
    change = decision.change_text()
    change = f"{change[:-1]}, {count(decision.n, 'block')})" if change.endswith(")") else change
    compared = f"{now / reference:.2f}x, {change}" if answer.claim != "build" else change
    least = decision.smallest_detectable
    body = [
        f"compared with {answer.reference}",
        f"by block, now: {figures([item.candidate.value for item in blocks])}",
        f"by block, reference: {figures([item.reference.value for item in blocks])}",
        f"smallest change detectable now: {detectable_text(least, NOT_YET)}",
        *decision.notes,
        *answer.notes,
        # Counted, not timed: it holds whatever the speed.
        *(line for line in before.body if line.startswith("accept length ")),
        f"before: {before.line}",
    ]
    if kind is Kind.INCONCLUSIVE:
        body.insert(4, _open_words(answer))
    samples = [
        path for block in answer.runner.blocks for path in block.arms["B"].workloads[question.workload].files
    ]
    return Verdict(
        kind,
        before.subject,
        f"{question.metric}: {figure(now)} vs {figure(reference)} {answer.unit}, {compared}, limit {sign}{limit:g} %",
        tuple(body),
        _next_command(kind, before),
        tuple(str(path) for path in samples[:SHOWN_FILES]),
        {
            **before.evidence,
            "now": now,
            "reference": reference,
            "ratio": now / reference,
            "change_percent": 100 * decision.change,
            "beyond_limit": 100 * loss > limit,
            "blocks": decision.n,
            "block_ratios": [item.candidate.value / item.reference.value for item in blocks],
            "scatter": decision.s,
            "scatter_calibrated": decision.s0,
            "smallest_detectable_percent": None if least is None else 100 * least,
            "blocks_needed": decision.blocks_needed,
            "alpha": answer.alpha,
        },
    )


def _open_words(answer: Answer) -> str:
    """What would decide it, or why nothing would."""
    decision = answer.decision
    if answer.claim == "gain" and ends_gain(decision):
        return f"neither a gain nor a loss: any difference is below {100 * decision.limit:g} %"
    if answer.claim != "build" and decision.kind == "PASS":
        what = "a gain" if answer.claim == "gain" else "a gain, or no difference,"
        return f"no loss; whether it is {what} takes more blocks"
    more = decision.blocks_needed
    return f"further blocks needed: {'cannot be foretold' if more is None else f'about {more}'}"


def of_profile(decision: Decision, claim: Claim) -> Kind:
    """Of a profile against another."""
    if claim == "no loss" and ends_gain(decision) and decision.kind == "PASS":
        return Kind.PASS
    kinds = {"REGRESSION": Kind.NET_LOSS, "IMPROVED": Kind.PASS}
    return kinds.get(decision.kind, Kind.INCONCLUSIVE)


def ends_gain(decision: Decision) -> bool:
    """Whether more blocks are worth nothing: a gain or a loss, or a difference that is surely below the limit."""
    if decision.kind == "PASS" and decision.interval is not None:
        low, high = decision.interval
        return low > 1 - decision.limit and high < 1 + decision.limit
    return decision.kind in ("REGRESSION", "IMPROVED")
