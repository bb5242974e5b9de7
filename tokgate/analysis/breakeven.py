"""When speculation pays: tok/s = accept length / cycle time, and what follows from it.

A cycle is one verify pass with everything around it. Speculation wins when the accept length exceeds
cycle time x baseline tok/s. Pure functions; milliseconds and tokens a second, one request at a time
(for a batch, give the rate of one request).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokgate.errors import UsageFault


@dataclass(frozen=True, slots=True)
class Residual:
    """What the parts do not explain.

    Attributes:
        measured_tok_s: end to end.
        effective_cycle_ms: accept length / measured tok/s.
        outside_ms: effective cycle minus the profiled one: gaps, scheduling, prefill, detokenising,
            the client; negative when the profiled cycle is longer than the effective one.
        outside_share: of the effective cycle.
        implied_accept_length: what the accept length would be if the profiled cycle were whole.
    """

    measured_tok_s: float
    effective_cycle_ms: float
    outside_ms: float
    outside_share: float
    implied_accept_length: float


@dataclass(frozen=True, slots=True)
class Lever:
    """One way to the break-even point.

    Attributes:
        name: ``accept length`` or ``cycle time``.
        now: tokens or ms.
        needed: the value at which speculation breaks even.
        bound: the best that is possible: steps + 1 tokens, or one baseline step; ``None`` when unknown.
    """

    name: str
    now: float
    needed: float
    bound: float | None

    @property
    def share_of_room(self) -> float | None:
        """How much of the way from now to the bound must be gone; above 1 it cannot be reached."""
        if self.bound is None:
            return None
        room = self.bound - self.now
        way = self.needed - self.now
        if abs(room) < 1e-12:
            return math.inf if abs(way) > 1e-12 else 0.0
        return way / room if room * way >= 0 else math.inf


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Whether speculation pays.

    Attributes:
        accept_length: tokens a verify pass, bonus included.
        break_even_accept_length: profiled cycle x baseline tok/s.
        break_even_cycle_ms: accept length / baseline tok/s.
        predicted_tok_s: accept length / cycle.
        accept_lever, cycle_lever: the ways to win, from the effective cycle when a rate was measured.
        residual: present when a measured rate was given.
    """

    baseline_tok_s: float
    cycle_ms: float
    accept_length: float
    break_even_accept_length: float
    break_even_cycle_ms: float
    predicted_tok_s: float
    accept_lever: Lever
    cycle_lever: Lever
    residual: Residual | None = None

    @property
    def speedup(self) -> float:
        """Predicted over baseline."""
        return self.predicted_tok_s / self.baseline_tok_s

    @property
    def measured_speedup(self) -> float | None:
        """Measured over baseline, when a rate was measured."""
        return None if self.residual is None else self.residual.measured_tok_s / self.baseline_tok_s

    @property
    def wins(self) -> bool:
        """Whether there is a net gain: by the measured rate when there is one, else by the predicted."""
        measured = self.measured_speedup
        return (self.speedup if measured is None else measured) > 1

    @property
    def nearer(self) -> Lever | None:
        """The lever that needs the smaller share of its room.

        In ratio both are equally far (the same factor), so only the room decides; ``None`` when
        speculation wins already or the greatest accept length is not known.
        """
        accept, cycle = self.accept_lever.share_of_room, self.cycle_lever.share_of_room
        if self.wins or accept is None or cycle is None or min(accept, cycle) > 1:
            return None
        return self.accept_lever if accept <= cycle else self.cycle_lever


def break_even(
    *,
    baseline_tok_s: float,
    cycle_ms: float,
    accept_length: float,
    measured_tok_s: float | None = None,
    draft_steps: int | None = None,
) -> BreakEven:
    """Judge one speculative server against its baseline.

    Args:
        baseline_tok_s: rate without speculation.
        cycle_ms: time of one verify cycle, as profiled.
        accept_length: tokens a cycle, 1 at least.
        measured_tok_s: rate with speculation, when it was measured.
        draft_steps: bounds the accept length at steps + 1 (a chain, topk 1).

    Raises:
        UsageFault: a figure that cannot be (not finite, not positive, accept length below 1).
    """
    for name, value in (
        ("baseline tok/s", baseline_tok_s),
        ("cycle ms", cycle_ms),
        ("accept length", accept_length),
        ("measured tok/s", measured_tok_s),
    ):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageFault(f"{name} must be a positive number, not {value:g}")
    if accept_length < 1:
        raise UsageFault(f"accept length {accept_length:g}: a verify pass gives one token at least")
    if draft_steps is not None and draft_steps < 1:
        raise UsageFault(f"draft steps {draft_steps}: one at least")
    if draft_steps is not None and accept_length > draft_steps + 1:
        raise UsageFault(
            f"accept length {accept_length:g} cannot be: "
            f"{draft_steps} draft steps give {draft_steps + 1} at most"
        )
    left = None if measured_tok_s is None else residual(accept_length, cycle_ms, measured_tok_s)
    # The levers start from where the server really is.
    real_cycle_ms = cycle_ms if left is None else left.effective_cycle_ms
    needed_cycle_ms = accept_length / baseline_tok_s * 1000
    return BreakEven(
        baseline_tok_s=baseline_tok_s,
        cycle_ms=cycle_ms,
        accept_length=accept_length,
        break_even_accept_length=cycle_ms / 1000 * baseline_tok_s,
        break_even_cycle_ms=needed_cycle_ms,
        predicted_tok_s=accept_length / cycle_ms * 1000,
        accept_lever=Lever(
            "accept length",
            accept_length,
            real_cycle_ms / 1000 * baseline_tok_s,
            None if draft_steps is None else float(draft_steps + 1),
        ),
        # A verify pass runs the whole target: it is not shorter than a baseline step.
        cycle_lever=Lever("cycle time", real_cycle_ms, needed_cycle_ms, 1000 / baseline_tok_s),
        residual=left,
    )


def residual(accept_length: float, cycle_ms: float, measured_tok_s: float) -> Residual:
    """What lies between the profiled cycle and the measured rate."""
    effective_ms = accept_length / measured_tok_s * 1000
    outside_ms = effective_ms - cycle_ms
    return Residual(
        measured_tok_s=measured_tok_s,
        effective_cycle_ms=effective_ms,
        outside_ms=outside_ms,
        outside_share=outside_ms / effective_ms,
        implied_accept_length=measured_tok_s * cycle_ms / 1000,
    )
