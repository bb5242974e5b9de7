"""Break-even of speculation in a verdict's words: where it lies, what a cycle is made of, what would reach it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from tokgate.analysis.breakeven import BreakEven, break_even
from tokgate.analysis.cycles import Cycles
from tokgate.gate.cycle.verify_passes import VerifyPass
from tokgate.gate.draft_steps import acceptance, draft_steps, draft_steps_lines, resolved_steps
from tokgate.gate.runs import Measured
from tokgate.gate.words import figure
from tokgate.report.explain_trace import cycles_json, effective_line


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
        draft_steps=resolved_steps(measured, fmean(accept_length)),
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
    if chances := acceptance(measured):
        by_position = ", ".join(f"{100 * chance:.0f} %" for chance in chances)
        lines.append(f"acceptance by draft position, of those reached: {by_position}")
    lines.append(
        f"or at accept length {state.accept_length:.2f} a cycle of {state.break_even_cycle_ms:.1f} ms"
    )
    lines += _lever_lines(state)
    if cycles is not None and cycles.on_device:
        model = draft_steps(state, measured, cycles, passes)
        lines += [] if model is None else draft_steps_lines(model)
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


def _share(share: float) -> str:
    return f"{100 * share:.0f} %" if share <= 1 else "more than all"
