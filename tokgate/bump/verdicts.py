"""From the blocks of a bump to its verdicts: speed and start-up over blocks, and what was observed besides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from tokgate.analysis.blocks import Block, pair
from tokgate.analysis.decision import Decision
from tokgate.analysis.percent import NOT_YET, detectable_text, percent_text
from tokgate.analysis.sequential import judge
from tokgate.bump.campaign import Group, Standing, arm_of
from tokgate.bump.observed import accept, answers, graphs, measured_of, unmeasured, with_line
from tokgate.bump.question import ACCEPT_LENGTH
from tokgate.bump.witness import Side
from tokgate.config.profiles import Profile
from tokgate.gate.blocks.deciding import Question
from tokgate.gate.runs import Measured
from tokgate.gate.start import STARTUP
from tokgate.gate.words import count, figure
from tokgate.report.bump_record import SPEED_OF
from tokgate.verdict import Kind, Verdict

SIDES: tuple[Side, Side] = ("old", "new")


def verdicts(campaign: Standing, parity: Sequence[str] = ()) -> list[Verdict]:
    """All verdicts that the blocks so far allow, profile by profile.

    Args:
        campaign: with its blocks.
        parity: cases of greedy parity that were asked for; one without answers of both versions is undecided.
    """
    found: list[Verdict] = []
    groups = {name: group for group in campaign.groups for name in group.deciding}
    for profile in campaign.ask.profiles:
        if profile.name in campaign.faults:
            found.append(campaign.faults[profile.name])
            continue
        group = groups[profile.name]
        deciding = group.deciding[profile.name]
        for question, decision in deciding.decisions().items():
            found.append(_over_blocks(campaign, group, profile, question, decision))
        startup = campaign.ask.startup_question(profile.name)
        if startup is not None:
            found.append(_startup(campaign, group, profile, startup))
        if profile.speculation is not None and ACCEPT_LENGTH in campaign.ask.metrics:
            found += [accept(campaign, group, profile, w.name) for w in campaign.ask.workloads]
        found += graphs(campaign, group, profile)
        found += answers(group, profile, parity)
    return found


def blocks_of(group: Group, profile: str, question: Question) -> list[Block]:
    """The paired launches of one question, those that decided it and any that came after."""
    sides = [
        group.runner.launches(arm_of(group.sides, profile, side), question.workload, question.metric)
        for side in ("old", "new")
    ]
    return pair(sides[0], sides[1], question.plan.better) if sides[0] else []


def _over_blocks(
    campaign: Standing, group: Group, profile: Profile, question: Question, decision: Decision | None
) -> Verdict:
    subject = f"{question.workload}[{profile.name}]"
    limit = campaign.ask.limit(question.metric)
    told: dict[str, Any] = {
        "workload": question.workload,
        "profile": profile.name,
        "metric": question.metric,
        SPEED_OF: question.workload != STARTUP,
        "unit": limit.unit,
        "limit_percent": limit.limit_percent,
        "better": limit.better,
    }
    if decision is None:
        why = "absent from every run" if group.runner.blocks else unmeasured(campaign)
        return Verdict(Kind.INCONCLUSIVE, subject, f"{question.metric}: {why}", evidence=told)
    blocks = blocks_of(group, profile.name, question)[: decision.n]
    old, new = (fmean(getattr(b, side).value for b in blocks) for side in ("reference", "candidate"))
    loss = -decision.change if limit.better == "higher" else decision.change
    sign = "-" if limit.better == "higher" else "+"
    seconds = fmean(block.seconds for block in group.runner.blocks)
    return Verdict(
        Kind(decision.kind),
        subject,
        f"{question.metric}: {figure(new)} vs {figure(old)} {limit.unit}, {decision.change_text()}, "
        f"{count(decision.n, 'block')}, limit {sign}{limit.limit_percent:g} %",
        body=tuple(_body(decision, blocks, seconds, group, profile, question)),
        evidence={
            **told,
            "now": new,
            "reference": old,
            "change_percent": 100 * decision.change,
            "interval_percent": None
            if decision.interval is None
            else [100 * (end - 1) for end in decision.interval],
            "beyond_limit": 100 * loss > limit.limit_percent,
            "blocks": decision.n,
            "blocks_needed": decision.blocks_needed,
            "smallest_detectable_percent": _percent(decision.smallest_detectable),
            "scatter_percent": _percent(decision.s),
            "scatter_known_percent": _percent(decision.s0),
            "alpha": question.plan.alpha,
            "method": decision.method,
            "old_runs": [list(b.reference.runs) for b in blocks],
            "new_runs": [list(b.candidate.runs) for b in blocks],
            "block_ratios": [math.exp(b.difference) for b in blocks],
            "control": control(blocks),
        },
    )


def _body(
    decision: Decision,
    blocks: Sequence[Block],
    seconds: float,
    group: Group,
    profile: Profile,
    question: Question,
) -> list[str]:
    told = control(blocks)
    lines = [
        f"control: the old version over {count(len(blocks), 'launch', 'launches')} today: "
        f"{figure(told['mean'])}, {figure(told['low'])} to {figure(told['high'])}"
        + (
            f", spread {percent_text(told['spread_percent'] / 100)}"
            if told["spread_percent"] is not None
            else ""
        )
    ]
    least = decision.smallest_detectable
    known = "no calibration" if decision.s0 is None else f"known from calibration {percent_text(decision.s0)}"
    measured = {side: measured_of(group, profile.name, side, question.workload) for side in SIDES}
    met = contention(measured)
    lines.append(
        f"scatter of a block {percent_text(decision.s)}, {known}; "
        f"smallest change detectable now {detectable_text(least, NOT_YET)}" + (f"; {met}" if met else "")
    )
    if decision.kind == "INCONCLUSIVE":
        needed = decision.blocks_needed
        cost = ""
        if needed is not None:
            minutes = max(1, round(needed * seconds / 60))
            cost = f", about {count(minutes, 'minute')} on this machine"
            if question.workload == STARTUP:
                cost = "; none is begun for start-up alone"
        lines.append(
            f"further blocks needed: {'cannot be foretold' if needed is None else f'about {needed}{cost}'}"
        )
    lines += [note for note in decision.notes if not note.startswith("about ")]
    arms = [arm for block in blocks for arm in (block.reference, block.candidate)]
    dropped = sum(len(arm.dropped) for arm in arms)
    if dropped:
        tails = [arm.tail if arm.tail < 1 else 1 / arm.tail for arm in arms]
        runs = sum(len(arm.runs) for arm in arms)
        lines.append(f"slowest runs trimmed: {dropped} of {runs}, the worst at {min(tails):.2f}x")
    for side in SIDES:
        void = [sample for m in measured[side] for sample in m.void]
        if void:
            causes = sorted({reason.cause for sample in void for reason in sample.void})
            lines.append(f"void runs repeated, {side}: {len(void)} ({', '.join(causes)})")
    return lines


def contention(measured: Mapping[Side, Sequence[Measured]]) -> str:
    """Runs that count and that something else on the host disturbed; empty where none is known of."""
    runs = {side: [sample for m in of for sample in m.samples] for side, of in measured.items()}
    advised = {side: [sample for sample in of if sample.advisory] for side, of in runs.items()}
    if not any(advised.values()):
        return ""
    causes = sorted({reason.cause for of in advised.values() for sample in of for reason in sample.advisory})
    told = ", ".join(f"{len(advised[side])} of {len(of)} runs of {side}" for side, of in runs.items())
    return f"under contention {told}: {', '.join(causes)}"


def control(blocks: Sequence[Block]) -> dict[str, Any]:
    """The old version re-measured: level and spread of its own launches today."""
    values = [block.reference.value for block in blocks]
    mean = fmean(values)
    spread = None
    if len(values) > 1:
        spread = 100 * math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) / mean
    return {"mean": mean, "low": min(values), "high": max(values), "spread_percent": spread}


def _startup(campaign: Standing, group: Group, profile: Profile, question: Question) -> Verdict:
    blocks = blocks_of(group, profile.name, question)
    decision = None
    for n in range(1, len(blocks) + 1):
        decision = judge([b.difference for b in blocks[:n]], question.plan, question.history)
        if decision.kind != "INCONCLUSIVE":
            break
    verdict = _over_blocks(campaign, group, profile, question, decision)
    if not group.runner.plan.together:
        return verdict
    # Servers that start at the same time share the host's cores: both versions alike, but slower than alone.
    arms = len(group.runner.plan.arms)
    return with_line(verdict, f"{arms} servers started at the same time: slower than one alone, both alike")


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
