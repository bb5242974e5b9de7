"""From the blocks of a bump to its verdicts: speed, start-up, accept length, parity, graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from tokgate.analysis.blocks import Block, pair
from tokgate.analysis.bootstrap import judge_requests
from tokgate.analysis.decision import Decision
from tokgate.analysis.exact import Counts, counts, judge_counts
from tokgate.analysis.sequential import judge
from tokgate.bump.campaign import Group, Standing, arm_of, stored_verdict
from tokgate.bump.question import ACCEPT_LENGTH, BumpAsk
from tokgate.bump.witness import Side, facts_of
from tokgate.config.profiles import Profile
from tokgate.gate.comparisons import Comparisons
from tokgate.gate.deciding import Question
from tokgate.gate.measurement import Measured
from tokgate.gate.words import count, figure
from tokgate.verdict import Kind, Verdict


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
            found.append(_over_blocks(campaign.ask, group, profile, question, decision))
        startup = campaign.ask.startup_question(profile.name)
        if startup is not None:
            found.append(_startup(campaign.ask, group, profile, startup))
        if profile.speculation is not None and ACCEPT_LENGTH in campaign.ask.metrics:
            found += [_accept(campaign.ask, group, profile, w.name) for w in campaign.ask.workloads]
        found += _graphs(campaign.ask, group, profile)
        found += _parity(group, profile, parity)
    return found


def blocks_of(group: Group, profile: str, question: Question) -> list[Block]:
    """The paired launches of one question, those that decided it and any that came after."""
    sides = [
        group.runner.launches(arm_of(group.sides, profile, side), question.workload, question.metric)
        for side in ("old", "new")
    ]
    return pair(sides[0], sides[1], question.plan.better) if sides[0] else []


def _over_blocks(
    ask: BumpAsk, group: Group, profile: Profile, question: Question, decision: Decision | None
) -> Verdict:
    subject = f"{question.workload}[{profile.name}]"
    limit = ask.limit(question.metric)
    told: dict[str, Any] = {
        "workload": question.workload,
        "profile": profile.name,
        "metric": question.metric,
        "unit": limit.unit,
        "limit_percent": limit.limit_percent,
        "better": limit.better,
    }
    if decision is None:
        measured = bool(group.runner.blocks)
        why = "absent from every run" if measured else "no block was measured within the budget"
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
        + (f", spread {told['spread_percent']:.1f} %" if told["spread_percent"] is not None else "")
    ]
    least = decision.smallest_detectable
    known = "no calibration" if decision.s0 is None else f"known from calibration {_text(decision.s0)}"
    lines.append(
        f"scatter of a block {_text(decision.s)}, {known}; smallest change detectable now {_text(least)}"
    )
    if decision.kind == "INCONCLUSIVE":
        needed = decision.blocks_needed
        cost = ""
        if needed is not None:
            minutes = max(1, round(needed * seconds / 60))
            cost = f", about {count(minutes, 'minute')} on this machine"
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
    for side in ("old", "new"):
        void = [sample for m in _measured(group, profile.name, side, question.workload) for sample in m.void]
        if void:
            causes = sorted({reason.cause for sample in void for reason in sample.void})
            lines.append(f"void runs repeated, {side}: {len(void)} ({', '.join(causes)})")
    return lines


def control(blocks: Sequence[Block]) -> dict[str, Any]:
    """The old version re-measured: level and spread of its own launches today."""
    values = [block.reference.value for block in blocks]
    mean = fmean(values)
    spread = None
    if len(values) > 1:
        spread = 100 * math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) / mean
    return {"mean": mean, "low": min(values), "high": max(values), "spread_percent": spread}


def _startup(ask: BumpAsk, group: Group, profile: Profile, question: Question) -> Verdict:
    blocks = blocks_of(group, profile.name, question)
    decision = None
    for n in range(1, len(blocks) + 1):
        decision = judge([b.difference for b in blocks[:n]], question.plan, question.history)
        if decision.kind != "INCONCLUSIVE":
            break
    verdict = _over_blocks(ask, group, profile, question, decision)
    if not group.runner.plan.together:
        return verdict
    # Servers that start at the same time share the host's cores: both versions alike, but slower than alone.
    arms = len(group.runner.plan.arms)
    return _with_line(verdict, f"{arms} servers started at the same time: slower than one alone, both alike")


def _accept(ask: BumpAsk, group: Group, profile: Profile, workload: str) -> Verdict:
    """Accept length, exactly where counts do not vary; else by resampling requests."""
    subject = f"{workload}[{profile.name}]"
    limit = ask.limit(ACCEPT_LENGTH)
    told = {
        "workload": workload,
        "profile": profile.name,
        "metric": ACCEPT_LENGTH,
        "unit": limit.unit,
        "limit_percent": limit.limit_percent,
        "better": limit.better,
    }
    sides = [_counts(group, profile.name, side, workload) for side in ("old", "new")]
    if any(side is None or not side for side in sides):
        silent = " and ".join(n for n, side in zip(("old", "new"), sides, strict=True) if not side)
        why = (
            f"the {silent} version reports no verify counts"
            if group.runner.blocks
            else "no block was measured"
        )
        return Verdict(Kind.INCONCLUSIVE, subject, f"{ACCEPT_LENGTH}: {why}", evidence=told)
    old, new = (side or [] for side in sides)
    fraction = limit.limit_percent / 100
    decision = judge_counts(old, new, limit=fraction) or judge_requests(
        old, new, limit=fraction, alpha=ask.alpha, beta=ask.gate.statistics.beta
    )
    means = [
        sum(c.tokens for run in side for c in run) / sum(c.passes for run in side for c in run)
        for side in (old, new)
    ]
    return Verdict(
        Kind(decision.kind),
        subject,
        f"{ACCEPT_LENGTH}: {means[1]:.3f} vs {means[0]:.3f} {limit.unit}, {100 * decision.change:+.2f} %, "
        f"{decision.method}, limit -{limit.limit_percent:g} %",
        body=decision.notes,
        evidence={
            **told,
            "now": means[1],
            "reference": means[0],
            "change_percent": 100 * decision.change,
            "blocks": len(group.runner.blocks),
            "method": decision.method,
        },
    )


def _counts(group: Group, profile: str, side: Side, workload: str) -> list[Counts] | None:
    """Verify counts of every run; ``None`` when a run has none."""
    found = [counts(s) for m in _measured(group, profile, side, workload) for s in m.samples]
    whole = [item for item in found if item is not None]
    return whole if len(whole) == len(found) else None


def _measured(group: Group, profile: str, side: Side, workload: str) -> list[Measured]:
    arm = arm_of(group.sides, profile, side)
    return [
        block.arms[arm].workloads[workload]
        for block in group.runner.blocks
        if workload in block.arms[arm].workloads
    ]


def _graphs(ask: BumpAsk, group: Group, profile: Profile) -> list[Verdict]:
    """Whether the new version captured and replayed its graphs, and what the old one did."""
    found = []
    comparisons = Comparisons(ask.gate)
    for workload in ask.workloads:
        each: dict[Side, Verdict] = {}
        for side in ("old", "new"):
            arm = arm_of(group.sides, profile.name, side)
            held = [b.arms[arm] for b in group.runner.blocks if workload.name in b.arms[arm].workloads]
            if held and held[-1].extras and held[-1].workloads[workload.name].samples:
                each[side] = comparisons.replay(
                    workload, profile, held[-1].workloads[workload.name], facts_of(held[-1].extras)
                )
        if "new" not in each:
            continue
        verdict = each["new"]
        if "old" in each:
            verdict = _with_line(verdict, f"the old version: {each['old'].kind} {each['old'].headline}")
        found.append(verdict)
    return found


def _parity(group: Group, profile: Profile, asked: Sequence[str]) -> list[Verdict]:
    arms = [arm_of(group.sides, profile.name, side) for side in ("old", "new")]
    stored: list[Mapping[str, Any]] = [
        item
        for block in group.runner.blocks
        for arm in arms
        for item in _list(block.arms[arm].extras.get("parity"))
    ]
    found = [stored_verdict(item) for item in stored]
    subjects = {verdict.subject for verdict in found}
    return found + [
        Verdict(
            Kind.INCONCLUSIVE,
            subject,
            "greedy outputs not compared: no block holds the answers of both versions",
            evidence={"profile": profile.name, "workload": f"parity-{name}", "metric": "greedy parity"},
        )
        for name in asked
        if (subject := f"parity-{name}[{profile.name}]") not in subjects
    ]


def _list(value: object) -> list[Mapping[str, Any]]:
    return value if isinstance(value, list) else []


def _with_line(verdict: Verdict, line: str) -> Verdict:
    return Verdict(
        verdict.kind,
        verdict.subject,
        verdict.headline,
        body=(*verdict.body, line),
        next_command=verdict.next_command,
        files=verdict.files,
        evidence=verdict.evidence,
    )


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _text(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{100 * value:.0f} %" if value >= 0.1 else f"{100 * value:.2g} %"
