"""What the blocks of a bump show without a test over blocks: accept length, graphs, greedy answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokgate.analysis.bootstrap import judge_requests
from tokgate.analysis.exact import Counts, counts, judge_counts
from tokgate.bump.campaign import Group, Standing, arm_of, stored_verdict
from tokgate.bump.question import ACCEPT_LENGTH
from tokgate.bump.witness import Side, facts_of
from tokgate.config.profiles import Profile
from tokgate.gate.comparisons import REPLAY, Comparisons
from tokgate.gate.runs import Measured
from tokgate.verdict import Kind, Verdict


def unmeasured(campaign: Standing) -> str:
    """Why there is no block, as far as the campaign knows."""
    if campaign.spent is None:
        return "interrupted before a block was measured"
    within = " within the budget" if campaign.spent.reason == "minutes" else ""
    return f"no block was measured{within}"


def accept(campaign: Standing, group: Group, profile: Profile, workload: str) -> Verdict:
    """Accept length, exactly where counts do not vary; else by resampling requests."""
    ask = campaign.ask
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
            f"the {silent} version reports no verify counts" if group.runner.blocks else unmeasured(campaign)
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
    found = [counts(s) for m in measured_of(group, profile, side, workload) for s in m.samples]
    whole = [item for item in found if item is not None]
    return whole if len(whole) == len(found) else None


def measured_of(group: Group, profile: str, side: Side, workload: str) -> list[Measured]:
    arm = arm_of(group.sides, profile, side)
    return [
        block.arms[arm].workloads[workload]
        for block in group.runner.blocks
        if workload in block.arms[arm].workloads
    ]


def graphs(campaign: Standing, group: Group, profile: Profile) -> list[Verdict]:
    """Whether the new version captured and replayed its graphs, and what the old one did."""
    found = []
    comparisons = Comparisons(campaign.ask.gate)
    for workload in campaign.ask.workloads:
        each: dict[Side, Verdict] = {}
        for side in ("old", "new"):
            arm = arm_of(group.sides, profile.name, side)
            held = [b.arms[arm] for b in group.runner.blocks if workload.name in b.arms[arm].workloads]
            if held and held[-1].extras and held[-1].workloads[workload.name].samples:
                each[side] = comparisons.replay(
                    workload, profile, held[-1].workloads[workload.name], facts_of(held[-1].extras)
                )
        verdict = each.get("new") or _no_facts(campaign, group, profile, workload.name)
        old = each.get("old")
        told = "its launches left no facts" if old is None else f"{old.kind} {old.headline}"
        found.append(with_line(verdict, f"the old version: {told}"))
    return found


def _no_facts(campaign: Standing, group: Group, profile: Profile, workload: str) -> Verdict:
    """Graphs of which nothing is known are not graphs that were replayed."""
    why = "the launches of the new version left no facts" if group.runner.blocks else unmeasured(campaign)
    evidence = {"profile": profile.name, "workload": workload, "metric": REPLAY}
    return Verdict(Kind.INCONCLUSIVE, f"{workload}[{profile.name}]", f"{REPLAY}: {why}", evidence=evidence)


def answers(group: Group, profile: Profile, asked: Sequence[str]) -> list[Verdict]:
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


def with_line(verdict: Verdict, line: str) -> Verdict:
    return Verdict(
        verdict.kind,
        verdict.subject,
        verdict.headline,
        body=(*verdict.body, line),
        next_command=verdict.next_command,
        files=verdict.files,
        evidence=verdict.evidence,
    )
