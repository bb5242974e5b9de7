"""The dry run: what would be done, what it costs, what it could find. Starts nothing, needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping

from tokgate.analysis.looks import BLOCKS_MIN_CHANGE
from tokgate.analysis.percent import detectable_text, percent_text
from tokgate.bump.campaign import sides_of
from tokgate.bump.costs import ProfileCost, affordable, profile_cost, round_seconds, sights
from tokgate.bump.options import BumpOptions, Prepared
from tokgate.bump.run import header
from tokgate.gate.blocks.runner import BlockPlan
from tokgate.gate.words import count

WORTH_SAYING = 0.9
"""Fewer blocks asked for are named when they find a change that is smaller by this factor."""


def rehearse(
    options: BumpOptions,
    prepared: Prepared,
    *,
    minutes: float | None,
    assumed_scatter: float | None,
    folder: str,
) -> list[str]:
    """The plan as lines.

    Args:
        minutes: of GPU time; ``None``: until decided.
        assumed_scatter: of a block difference where no calibration is stored, as a fraction.
    """
    from pathlib import Path

    ask = prepared.ask
    stored = Path(options.baselines)
    costs = {p.name: profile_cost(ask, p.name, stored, prepared.host_class) for p in ask.profiles}
    blocks = affordable(ask, costs, minutes)
    lines = [
        *header(ask, prepared.host_class, Path(folder)),
        f"judged over blocks: {', '.join(ask.tested) or 'none'}; counted: accept_length; compared: greedy parity "
        f"({', '.join(options.parity) or 'none'}), start-up, memory, graphs, server arguments, packages",
        *prepared.notes,
        "",
        *_cost_lines(prepared, costs, blocks, minutes),
        "",
        *_sight_lines(prepared, blocks, assumed_scatter),
        "",
        *_order_lines(prepared),
    ]
    assumed = sorted({line for cost in costs.values() for line in cost.assumed})
    lines += [f"assumed, nothing stored for {prepared.host_class}: {line}" for line in assumed]
    return lines


def _cost_lines(
    prepared: Prepared, costs: Mapping[str, ProfileCost], blocks: Mapping[str, int], minutes: float | None
) -> list[str]:
    ask = prepared.ask
    together = ask.pairing != "apart"
    lines = [
        f"{name}: a block takes {cost.block_s(together):.0f} s: start {cost.start_s:.0f} s"
        f"{'' if together else ' twice'}, runs {cost.runs_s:.0f} s"
        for name, cost in costs.items()
    ]
    whole_s = round_seconds(ask, costs)
    least = min(blocks.values())
    unit = "GPU minutes" if ask.old.kind == "gpu" else "minutes"
    budget = "no budget given: until decided" if minutes is None else f"budget {minutes:g} minutes"
    lines.append(
        f"one block of every profile: {whole_s / 60:.1f} {unit}; {budget}: "
        f"up to {count(least, 'block')} a profile, {least * whole_s / 60:.1f} {unit} at most"
    )
    return lines


def _sight_lines(prepared: Prepared, blocks: Mapping[str, int], assumed_scatter: float | None) -> list[str]:
    found = sights(prepared.ask, blocks, assumed_scatter)
    if not found:
        return ["no metric is judged over blocks: these are for what is counted and compared"]
    if all(sight.blocks < BLOCKS_MIN_CHANGE for sight in found):
        most = count(max(sight.blocks for sight in found), "block")
        return [f"smallest change that {most} a profile can find: none, a REGRESSION needs three"]
    unknown = [sight for sight in found if sight.scatter is None]
    verdicts = "the verdict" if len(found) == 1 else f"all {len(found)} verdicts"
    whose = verdicts if len(unknown) == len(found) else f"{len(unknown)} of {count(len(found), 'verdict')}"
    told = (
        f"smallest change that these blocks find: unknown for {whose}, no calibration "
        "(tokgate calibrate run, or --assume-scatter-percent)"
    )
    if len(unknown) == len(found):
        return [told]
    lines = ["smallest change that these blocks find 95 times of 100 (a change of the limit is sought):"]
    for sight in found:
        limit = prepared.ask.limit(sight.metric).limit_percent
        head = (
            f"  {sight.workload}[{sight.profile}] {sight.metric}, limit {limit:g} %, "
            f"{count(sight.blocks, 'block')}:"
        )
        if sight.blocks < BLOCKS_MIN_CHANGE:
            lines.append(f"{head} nothing: a REGRESSION needs three blocks")
        elif sight.scatter is None:
            lines.append(f"{head} unknown")
        else:
            found_least = detectable_text(sight.detectable, "nothing")
            ended = ""
            if sight.as_all is not None and sight.as_all < WORTH_SAYING * (sight.detectable or 1.0):
                ended = f"; with --blocks {sight.blocks}: {detectable_text(sight.as_all)}"
            lines.append(f"{head} {found_least} (scatter {percent_text(sight.scatter)}, {sight.why}){ended}")
    return [*lines, told] if unknown else lines


def _order_lines(prepared: Prepared) -> list[str]:
    """The first blocks, as they would be run."""
    ask = prepared.ask
    _, arms = sides_of(ask, ask.profiles if ask.pairing == "all" else ask.profiles[:1])
    plan = BlockPlan(tuple(arms), ask.workloads, ask.seed, ask.runs_per_arm, together=ask.pairing != "apart")
    lines = ["first blocks:"]
    for number in range(2):
        order = plan.run_order(number, ask.workloads[0].name)
        lines.append(f"  {number + 1}: launch {', '.join(plan.launch_order(number))}")
        lines.append(f"     runs of {ask.workloads[0].name}: {', '.join(order)}")
    return lines
