"""Outcome: a campaign as it stands, made into a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from tokgate.bump.campaign import Group, Standing, arm_of
from tokgate.bump.defaults import defaults
from tokgate.bump.stack import Moves, Stack, moves
from tokgate.bump.verdicts import verdicts
from tokgate.bump.witness import Side
from tokgate.config.engine import Engine
from tokgate.report.bump_record import BumpReport, Difference
from tokgate.verdict import Verdict

SAME = 0.005
"""Memory figures that differ by less, relatively, are not shown."""

ENDED: Mapping[str, str] = {
    "decided": "every verdict is reached",
    "minutes": "the budget is spent",
    "blocks": "all blocks are measured (--blocks allows more)",
}
NO_MORE = "no further block is due: what is still open is judged from those there are"


def report_of(
    campaign: Standing,
    *,
    header: Sequence[str],
    stacks: tuple[Stack, Stack],
    again: str,
    remarks: Sequence[str] = (),
    parity: Sequence[str] = (),
) -> BumpReport:
    """The report of what was measured so far.

    Args:
        header: what was run, on what.
        stacks: of the old and the new engine.
        again: the command that goes on.
        parity: cases of greedy parity that were asked for.
    """
    moved: Moves = moves(*stacks)
    groups = campaign.groups
    found = verdicts(campaign, parity)
    old, new = campaign.ask.old, campaign.ask.new
    stopped_early = campaign.spent is None or campaign.spent.reason == "minutes"
    seconds = sum(block.seconds for group in groups for block in group.runner.blocks)
    return BumpReport(
        old=_label(old, new),
        new=_label(new, old),
        header=tuple(header),
        verdicts=tuple(found),
        blocks=sum(len(group.runner.blocks) * len(group.deciding) for group in groups),
        gpu_minutes=seconds / 60,
        ended=_ended(campaign, found),
        moved=tuple(Difference(m.name, m.old, m.new) for m in moved.weighty),
        moved_others=len(moved.others),
        moved_unknown=moved.unknown,
        defaults=tuple(item for group in groups for item in _defaults(group)),
        memory=tuple(item for group in groups for item in _memory(group)),
        remarks=(*campaign.remarks, *_of_runners(groups), *remarks),
        # Once all blocks are in, the last test was made: more blocks are another question.
        again=again if stopped_early else "",
        facts={
            "engine_kind": campaign.ask.old.kind,
            "alpha_per_verdict": campaign.ask.alpha,
            "beta": campaign.ask.gate.statistics.beta,
            "blocks_max": campaign.ask.blocks_max,
            "seed": campaign.ask.seed,
            "pairing": campaign.ask.pairing,
            "runs_per_arm": campaign.ask.runs_per_arm,
        },
    )


def _of_runners(groups: Sequence[Group]) -> list[str]:
    """Each remark once, with the profiles that it is of."""
    of: dict[str, list[str]] = {}
    for group in groups:
        for line in group.runner.remarks:
            of.setdefault(line, []).extend(group.deciding)
    return [f"{line} ({', '.join(names)})" for line, names in of.items()]


def _label(engine: Engine, other: Engine) -> str:
    """The version, with the engine's name where that is what differs."""
    if engine.version != other.version or engine == other:
        return engine.version
    return f"{engine.version} ({engine.name})"


def _ended(campaign: Standing, found: Sequence[Verdict]) -> str:
    if campaign.spent is None:
        return "interrupted"
    open_ = any(v.outcome == "undecided" and v.evidence.get("blocks") for v in found)
    if campaign.spent.reason == "decided" and open_:
        # The blocks that were allowed are in, or those that were due; some questions are open all the same.
        full = any(len(group.runner.blocks) >= campaign.ask.blocks_max for group in campaign.groups)
        return ENDED["blocks"] if full else NO_MORE
    return ENDED[campaign.spent.reason]


def _defaults(group: Group) -> list[Difference]:
    """Arguments that resolved differently; what only one version knows is counted."""
    found = []
    for profile in group.deciding:
        told = [_first(group, profile, side, "arguments") for side in ("old", "new")]
        if not all(isinstance(item, dict) for item in told):
            if group.runner.blocks:
                found.append(Difference("server arguments", None, "not told by both versions", profile))
            continue
        result = defaults(told[0], told[1])
        found += [Difference(item.name, item.old, item.new, profile) for item in result.changed]
        for names, version in ((result.dropped, "old"), (result.added, "new")):
            if names:
                what = f"arguments that only the {version} version has"
                number = str(len(names))
                sides = (number, "0") if version == "old" else ("0", number)
                found.append(Difference(what, *sides, profile))
    return found


def _memory(group: Group) -> list[Difference]:
    found = []
    for profile in group.deciding:
        means = [_mean_memory(group, profile, side) for side in ("old", "new")]
        for name in sorted({*means[0], *means[1]}):
            old, new = (side.get(name) for side in means)
            if old is not None and new is not None and abs(new - old) <= SAME * max(abs(old), abs(new)):
                continue
            found.append(Difference(name, _text(old), _text(new), profile))
    return found


def _mean_memory(group: Group, profile: str, side: Side) -> dict[str, float]:
    arm = arm_of(group.sides, profile, side)
    values: dict[str, list[float]] = {}
    for block in group.runner.blocks:
        told: Any = block.arms[arm].extras.get("memory") or {}
        for name, value in told.items():
            values.setdefault(name, []).append(float(value))
    return {name: fmean(found) for name, found in values.items()}


def _first(group: Group, profile: str, side: Side, key: str) -> Any:
    """The first that a side told of something that does not change from launch to launch."""
    arm = arm_of(group.sides, profile, side)
    for block in group.runner.blocks:
        if block.arms[arm].extras.get(key) is not None:
            return block.arms[arm].extras[key]
    return None


def _text(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}" if value < 10000 else f"{value:.0f}"
