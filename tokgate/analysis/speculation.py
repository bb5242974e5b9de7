"""Where a change of speed under speculation comes from: accept length, cycle time, or neither.

``tok/s = accept length / cycle time x the rest``. On the log scale the three add up, so a change of tok/s is
the sum of theirs. A draft that is accepted more and a verify that got slower can cancel: tok/s alone passes
while both have moved. That case is flagged as masked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokgate.analysis.interval import ratio_interval
from tokgate.analysis.values import Values, log_limit, measured
from tokgate.errors import SampleFault


@dataclass(frozen=True, slots=True)
class SpeculativeRuns:
    """Runs of one profile, entry i of each from the same run.

    Attributes:
        output_tok_s: tokens a second.
        accept_length: tokens per verify pass, bonus token included.
        cycle_ms: time of a draft-and-verify cycle, milliseconds.
    """

    output_tok_s: tuple[float, ...]
    accept_length: tuple[float, ...]
    cycle_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.output_tok_s) == len(self.accept_length) == len(self.cycle_ms):
            raise SampleFault("speculative runs: tok/s, accept length and cycle time differ in number")

    def rest(self) -> Values:
        """tok/s x cycle time / accept length of each run.

        About the number of requests in flight; below it by the time that lies in no cycle (prefill, gaps).
        """
        speed = measured(self.output_tok_s, "output_tok_s")
        cycle_s = measured(self.cycle_ms, "cycle_ms") / 1e3
        return np.asarray(speed * cycle_s / measured(self.accept_length, "accept_length"))


@dataclass(frozen=True, slots=True)
class Part:
    """One factor's share of a change.

    Attributes:
        name: ``accept length``, ``cycle time`` or ``rest``.
        before, after: means, in ``unit``.
        effect: factor by which this part alone changes tok/s (a longer cycle gives less than 1).
        low, high: 95 % interval of ``effect`` over runs; 0 and infinity when a side has one run.
        unit: of ``before`` and ``after``.
    """

    name: str
    before: float
    after: float
    effect: float
    low: float
    high: float
    unit: str

    @property
    def moved(self) -> bool:
        """The interval excludes no effect."""
        return self.high < 1 or self.low > 1

    def text(self) -> str:
        """``cycle time 33.0 -> 36.3 ms: -9.1 % of tok/s (95 % CI -9.6..-8.5)``."""
        ends = (
            f"{100 * (self.low - 1):+.1f}..{100 * (self.high - 1):+.1f}"
            if math.isfinite(self.high)
            else "none"
        )
        return (
            f"{self.name} {self.before:.4g} -> {self.after:.4g}{' ' if self.unit else ''}{self.unit}: "
            f"{100 * (self.effect - 1):+.1f} % of tok/s (95 % CI {ends})"
        )


@dataclass(frozen=True, slots=True)
class Attribution:
    """A change of tok/s under speculation, taken apart.

    Attributes:
        total: factor on tok/s, the product of the parts' effects.
        acceptance, cycle, rest: the parts.
        cause: ``acceptance``, ``cycle time``, ``both``, ``rest`` or ``none``: parts whose effect is beyond
            the limit and whose interval excludes no effect.
        masked: acceptance and cycle time moved by more than the limit, in opposite directions, so that
            tok/s hides one of them.
    """

    total: float
    acceptance: Part
    cycle: Part
    rest: Part
    cause: str
    masked: bool

    def lines(self) -> tuple[str, ...]:
        """The split, for the body of a message."""
        lines = [part.text() for part in (self.acceptance, self.cycle, self.rest)]
        if self.masked:
            lines.append(
                f"masked: {self.acceptance.name} and {self.cycle.name} moved against each other; tok/s shows "
                f"only {100 * (self.total - 1):+.1f} %"
            )
        return tuple(lines)


def attribute(before: SpeculativeRuns, after: SpeculativeRuns, *, limit: float) -> Attribution:
    """Lay a change of tok/s to acceptance, cycle time or the rest.

    The intervals are over runs of the servers measured; like :mod:`tokgate.analysis.interval` they do not
    cover what another launch would do.

    Args:
        before, after: runs of the reference and of the candidate.
        limit: a part that moves tok/s by less, as a fraction, is no cause.

    Raises:
        SampleFault: empty, or values that cannot be measurements.
    """
    theta = log_limit(limit, "higher")
    acceptance = _part("accept length", before.accept_length, after.accept_length, "tokens", inverse=False)
    cycle = _part("cycle time", before.cycle_ms, after.cycle_ms, "ms", inverse=True)
    rest = _part("rest", list(before.rest()), list(after.rest()), "", inverse=False)

    def weighty(part: Part) -> bool:
        return part.moved and abs(math.log(part.effect)) >= theta

    big_a, big_c = weighty(acceptance), weighty(cycle)
    opposed = (acceptance.effect - 1) * (cycle.effect - 1) < 0
    cause = "both" if big_a and big_c else "acceptance" if big_a else "cycle time" if big_c else "none"
    if cause == "none" and weighty(rest):
        cause = "rest"
    total = acceptance.effect * cycle.effect * rest.effect
    return Attribution(total, acceptance, cycle, rest, cause, big_a and big_c and opposed)


def _part(name: str, before: Sequence[float], after: Sequence[float], unit: str, *, inverse: bool) -> Part:
    top, bottom = (before, after) if inverse else (after, before)
    ratio = ratio_interval(top, bottom)
    # One run a side says nothing of its noise; one run on one side only must not pass for an exact figure.
    single = len(before) < 2 or len(after) < 2
    low, high = (0.0, math.inf) if single else (ratio.low, ratio.high)
    return Part(
        name,
        float(measured(before, f"{name}, before").mean()),
        float(measured(after, f"{name}, after").mean()),
        ratio.value,
        low,
        high,
        unit,
    )
