"""Break-even in words."""

from __future__ import annotations

from collections.abc import Sequence

from tokgate.analysis.breakeven import BreakEven, Lever, Residual
from tokgate.analysis.step_model import ModelledPoint, TreeNeed, best_steps

# Below this share the parts and the whole agree as well as such figures are ever measured.
AGREES_SHARE = 0.02


def break_even_lines(found: BreakEven) -> list[str]:
    """The verdict first, then the arithmetic behind it."""
    measured = found.measured_speedup
    ratio = found.speedup if measured is None else measured
    rate = found.predicted_tok_s if found.residual is None else found.residual.measured_tok_s
    word = "predicted" if measured is None else "measured"
    verdict = "NET_GAIN" if found.wins else "NET_LOSS"
    lines = [
        f"{verdict} {rate:.1f} tok/s {word} vs {found.baseline_tok_s:g} without speculation, "
        f"{ratio:.2f}x ({100 * (ratio - 1):+.1f} %)",
        f"  break-even accept length {found.break_even_accept_length:.2f} = "
        f"cycle {found.cycle_ms:g} ms x {found.baseline_tok_s:g} tok/s; accept length "
        f"{found.accept_length:g}",
        f"  predicted {found.predicted_tok_s:.1f} tok/s = "
        f"{found.accept_length:g} tokens / {found.cycle_ms:g} ms",
    ]
    if found.residual is not None:
        lines += residual_lines(found.residual, found.accept_length)
    if not found.wins:
        lines += _lever_lines(found)
    return lines


def _lever_lines(found: BreakEven) -> list[str]:
    accept, cycle = found.accept_lever, found.cycle_lever
    lines = [
        f"  to win: accept length above {accept.needed:.2f} ({accept.needed - accept.now:+.2f}) "
        f"at a cycle of {cycle.now:.1f} ms, "
        f"or a cycle below {cycle.needed:.1f} ms ({cycle.needed - cycle.now:+.1f} ms) "
        f"at an accept length of {accept.now:g}",
    ]
    if accept.share_of_room is None:
        lines.append("  nearer lever: not judged, the greatest accept length is not known (--draft-steps)")
    elif found.nearer is None:
        lines.append(
            f"  nearer lever: none reaches; accept length is {_bound(accept)}, the cycle {_bound(cycle)}"
        )
    else:
        lines.append(
            f"  nearer lever: {found.nearer.name}; accept length needs {_room(accept)}, "
            f"the cycle needs {_room(cycle)}"
        )
    return lines


def _bound(lever: Lever) -> str:
    if lever.name == "accept length":
        return f"{lever.bound:g} at most"
    return f"{lever.bound:.1f} ms at least (one baseline step)"


def _room(lever: Lever) -> str:
    share = lever.share_of_room
    if share is None or share > 1:
        return f"more than there is ({_bound(lever)})"
    return f"{100 * share:.0f} % of its room ({_bound(lever)})"


def residual_lines(found: Residual, accept_length: float) -> list[str]:
    """What the measured rate says about the profiled cycle."""
    effective = (
        f"  effective cycle {found.effective_cycle_ms:.1f} ms = "
        f"{accept_length:g} tokens / {found.measured_tok_s:g} tok/s"
    )
    if abs(found.outside_share) <= AGREES_SHARE:
        return [effective, "  the profiled cycle explains the measured rate"]
    if found.outside_ms > 0:
        return [
            effective,
            f"  {found.outside_ms:.1f} ms a cycle ({100 * found.outside_share:.0f} %) lie outside the "
            f"profiled cycle (gaps, scheduling, prefill, detokenising, client), "
            f"or the true accept length is {found.implied_accept_length:.1f}",
        ]
    return [
        effective,
        f"  the profiled cycle is {-found.outside_ms:.1f} ms longer than the effective one: "
        f"profiling slows it, or the true accept length is {found.implied_accept_length:.1f}",
    ]


def curve_lines(
    curve: Sequence[ModelledPoint], *, measured_steps: int | None, topk: int = 1, growing: bool = False
) -> list[str]:
    """The modelled speed-up against draft steps.

    Args:
        topk: of the server that was measured.
        growing: whether the verify pass of a chain grows with its tokens in the model.
    """
    best = best_steps(curve)
    if topk > 1:
        what = f"tree of topk {topk}, its number of tokens and verify cost as measured"
    else:
        what = f"chain, topk 1; verify cost {'by its tokens' if growing else 'as measured'}"
    lines = [f"  modelled ({what}):", "    steps  accept  cycle ms  tok/s  speed-up"]
    for point in curve:
        mark = " best" if point is best else ""
        mark += " measured" if point.steps == measured_steps else ""
        lines.append(
            f"    {point.steps:>5}  {point.accept_length:>6.2f}  {point.cycle_ms:>8.1f}  "
            f"{point.tok_s:>5.1f}  {point.speedup:>7.2f}x{mark}"
        )
    if best.speedup <= 1:
        lines.append("  no number of draft steps wins at these costs and this acceptance")
    return lines


def tree_lines(needs: Sequence[TreeNeed], chain: float) -> list[str]:
    """What trees would have to reach; a chain's figures do not say whether they would.

    Args:
        chain: accept length of the best chain.
    """
    why = (
        "a chain does not tell how often a second choice would be right: measure a profile with topk above 1"
    )
    if not needs:
        return [
            "  topk above 1: not modelled: what a token more costs in verify is not known, and",
            f"    {why}",
        ]
    said = "; ".join(
        f"topk {need.topk} with {need.draft_tokens} tokens "
        + (
            f"is faster above {need.accept_length:.2f}"
            if need.possible
            else f"cannot be faster (above {need.accept_length:.2f}, {need.steps + 1} at most)"
        )
        for need in needs
    )
    return [f"  topk above 1, accept length against the chain's {chain:.2f}: {said};", f"    {why}"]
