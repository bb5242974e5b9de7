"""Break-even of speculation in a verdict's words: where it lies, what a cycle is made of, what would reach it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from tokgate.analysis.breakeven import BreakEven, break_even
from tokgate.analysis.cycles import Cycles
from tokgate.analysis.step_model import (
    TREES,
    CostLine,
    StepCosts,
    best_steps,
    constant_acceptance,
    cost_line,
    modelled_curve,
    position_acceptance,
    tree_need,
)
from tokgate.analysis.step_parts import OTHER
from tokgate.gate.runs import Measured
from tokgate.gate.verify_passes import VerifyPass, tokens_of
from tokgate.gate.words import count, figure
from tokgate.report.explain_breakeven import tree_lines
from tokgate.report.explain_trace import cycles_json, effective_line
from tokgate.sglang.trace_spans import DRAFT, DRAFT_EXTEND, VERIFY

NOTABLE_GAPS = 0.1
"""Share of a cycle in no kernel from which the model says that it takes it to stay: fewer steps launch less."""


def state_of(measured: Measured, baseline_tok_s: float) -> BreakEven | None:
    """Whether speculation pays, from what was measured; ``None`` where the server reports no accept length.

    Args:
        measured: of the speculative profile.
        baseline_tok_s: of one stream without speculation.
    """
    accept_length, cycle_ms = measured.series("accept_length"), measured.series("cycle_ms")
    if not accept_length or not cycle_ms:
        return None
    return break_even(
        baseline_tok_s=baseline_tok_s,
        cycle_ms=fmean(cycle_ms),
        accept_length=fmean(accept_length),
        draft_steps=_draft_steps(measured, fmean(accept_length)),
    )


def break_even_lines(
    state: BreakEven, measured: Measured, cycles: Cycles | None, passes: Sequence[VerifyPass] = ()
) -> list[str]:
    """Where break-even lies, what the cycle is made of, and which lever is the nearer one.

    Args:
        cycles: of a trace, where one was recorded.
        passes: verify passes of the same target that were traced in this run, ``cycles``' own among them.
    """
    profiled = ""
    if cycles is not None and cycles.on_device:
        on_profiled = cycles.busy_ms / 1e3 * state.baseline_tok_s
        profiled = f" ({on_profiled:.2f} on the {cycles.busy_ms:.1f} ms that the trace shows in kernels)"
    lines = [
        f"break-even accept length {state.break_even_accept_length:.2f}{profiled} = "
        f"cycle {state.cycle_ms:.1f} ms x {figure(state.baseline_tok_s)} tok/s; "
        f"measured {state.accept_length:.2f}"
    ]
    if cycles is not None and cycles.on_device:
        lines.append(effective_line(cycles, state.cycle_ms))
    if chances := _acceptance(measured):
        by_position = ", ".join(f"{100 * chance:.0f} %" for chance in chances)
        lines.append(f"acceptance by draft position, of those reached: {by_position}")
    lines.append(
        f"or at accept length {state.accept_length:.2f} a cycle of {state.break_even_cycle_ms:.1f} ms"
    )
    lines += _lever_lines(state)
    if cycles is not None and cycles.on_device:
        lines += _model_lines(state, measured, cycles, passes)
    return lines


def break_even_figures(state: BreakEven, cycles: Cycles | None) -> dict[str, object]:
    """The same for the evidence."""
    told: dict[str, object] = {
        "accept_length": state.accept_length,
        "cycle_ms": state.cycle_ms,
        "break_even_accept_length": state.break_even_accept_length,
    }
    return told if cycles is None else told | {"cycles": cycles_json(cycles)}


def _lever_lines(state: BreakEven) -> list[str]:
    """Which of the two ways to break-even is the nearer one, against the best that is possible."""
    shares = state.accept_lever.share_of_room, state.cycle_lever.share_of_room
    if state.wins or shares[0] is None or shares[1] is None:
        return []
    if state.nearer is None:
        return ["neither can be reached: even every draft accepted, or a cycle of one step, is too little"]
    accept, cycle = state.accept_lever, state.cycle_lever
    ways = [
        f"accept length needs {_share(shares[0])} of the way from {accept.now:.2f} to {accept.bound:g}",
        f"cycle time {_share(shares[1])} of the way from {cycle.now:.1f} to {cycle.bound:.1f} ms",
    ]
    return [f"nearer lever: {state.nearer.name}: {', '.join(ways)}"]


def _model_lines(
    state: BreakEven, measured: Measured, cycles: Cycles, passes: Sequence[VerifyPass]
) -> list[str]:
    """The best number of draft steps at these costs, and what a tree would have to reach."""
    steps = _draft_steps(measured, state.accept_length)
    if steps is None or VERIFY not in cycles.parts_ms:
        return []
    parts = cycles.parts_ms
    resolved = measured.samples[0].identity.resolved
    topk = resolved.get("speculative_eagle_topk") or 1
    # One of the draft's tokens comes from draft extend: the draft itself makes steps - 1 passes.
    draft_ms = parts.get(DRAFT, 0.0) / max(1, steps - 1)
    line = cost_line([(item.tokens, item.ms) for item in passes])
    streams = next((item.streams for item in passes if item.cycles is cycles), 1)
    costs = StepCosts(
        verify_ms=parts[VERIFY] + parts.get(OTHER, 0.0),
        draft_ms=draft_ms,
        extend_ms=parts.get(DRAFT_EXTEND, 0.0) - draft_ms,
        other_ms=max(0.0, state.cycle_ms - cycles.busy_ms),
    )
    # A line through passes of very different sizes may leave nothing for a small one: then it says nothing here.
    grown = costs if line is None else replace(costs, verify_per_token_ms=line.per_token_ms * streams)
    if line is None or grown.verify_per_token_ms * (steps + 1) >= costs.verify_ms:
        line, grown = None, costs
    known = _acceptance(measured)
    chances = known or [constant_acceptance(state.accept_length, steps)]
    # The tokens of a tree are a setting of their own: a step more is no token more in its verify pass.
    along = grown if topk == 1 else costs
    curve = modelled_curve(along, chances, baseline_tok_s=state.baseline_tok_s, measured_steps=steps)
    best = best_steps(curve)
    said = f"{count(best.steps, 'draft step')} would be best, {best.speedup:.2f}x ({best.tok_s:.0f} tok/s)"
    if best.steps == steps:
        said = f"{count(steps, 'draft step')}, as now, are best"
    if best.speedup <= 1:
        said = f"no number of draft steps wins; {said}"
    if not known:
        said += "; with one chance of acceptance for all positions, since no histogram is reported"
    elif best.steps > len(known):
        said += f"; acceptance beyond position {len(known)} is taken to be that of position {len(known)}"
    gaps = costs.other_ms / state.cycle_ms
    if gaps >= NOTABLE_GAPS:
        said += f"; the {100 * gaps:.0f} % of a cycle that lie in no kernel are taken to stay"
    if topk != 1:
        tokens = tokens_of(measured)
        tree = f"tree of topk {topk}" + ("" if tokens is None else f" and {tokens} tokens") + " as measured"
        return [f"modelled from these costs ({tree}): {said}"]
    needs = [
        tree_need(grown, best, measured_steps=steps, topk=wide)
        for wide in (TREES if line is not None else ())
    ]
    trees = [item.strip() for item in tree_lines(needs, best.accept_length)]
    return [f"modelled from these costs (chain, verify {_grows(line)}): {said}", " ".join(trees)]


def _grows(line: CostLine | None) -> str:
    if line is None:
        return "as measured"
    sizes = sorted({tokens for tokens, _ in line.points})
    return f"{line.per_token_ms:.3f} ms a token more, from passes of {', '.join(map(str, sizes))} tokens"


def _acceptance(measured: Measured) -> list[float]:
    """Chance of acceptance by draft position, over all requests; empty where no histogram is reported.

    SGLang ends a histogram at the last number of tokens that occurred. Positions behind it, up to the draft
    steps, were reached whenever all before them were accepted, and never accepted.
    """
    histograms = [r.accept_histogram for s in measured.samples for r in s.requests if r.accept_histogram]
    if not histograms:
        return []
    steps = measured.samples[0].identity.resolved.get("speculative_num_steps")
    longest = max([*map(len, histograms), steps + 1 if isinstance(steps, int) else 0])
    total = [sum(h[i] for h in histograms if i < len(h)) for i in range(longest)]
    return [chance for chance in position_acceptance(total) if chance is not None]


def _share(share: float) -> str:
    return f"{100 * share:.0f} %" if share <= 1 else "more than all"


def _draft_steps(measured: Measured, accept_length: float) -> int | None:
    """Draft steps as resolved; ``None`` when not told, or when more tokens came than they can give."""
    steps = measured.samples[0].identity.resolved.get("speculative_num_steps")
    return steps if isinstance(steps, int) and accept_length <= steps + 1 else None
