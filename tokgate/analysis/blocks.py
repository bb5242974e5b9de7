"""Block differences: the unit of every claim about a build.

A block is a launch of the reference and a launch of the candidate, a few runs each. What a launch did to
all its runs cannot be averaged away by more runs, so one block gives one number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokgate.analysis.values import Better, direction, measured
from tokgate.errors import SampleFault

TRIM_SHARE = 0.25
"""Share of an arm's runs, from the slow end, that does not count: one of four."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One launch of a block.

    Attributes:
        value: trimmed mean of its runs, in the metric's unit.
        runs: every run, in the order measured.
        dropped: those that the trim left out wholly, slowest first: reported, so that
            trimming hides no stall.
    """

    value: float
    runs: tuple[float, ...]
    dropped: tuple[float, ...]

    @property
    def tail(self) -> float:
        """Ratio of the slowest run to the trimmed mean."""
        slowest = self.dropped[0] if self.dropped else min(self.runs)
        return slowest / self.value


@dataclass(frozen=True, slots=True)
class Block:
    """Reference and candidate side by side; ``difference`` is ln(candidate / reference)."""

    reference: Arm
    candidate: Arm

    @property
    def difference(self) -> float:
        return math.log(self.candidate.value / self.reference.value)


def arm(runs: Sequence[float], better: Better, what: str = "runs") -> Arm:
    """One launch's runs as an :class:`Arm`.

    The slowest quarter is left out, with a fractional weight where a quarter is no whole number of runs, so
    that arms of three and of four runs (one was void) still estimate the same thing.

    Args:
        runs: values of one metric, any unit, in the order measured.
        better: which end is slow.
        what: names the runs in messages.

    Raises:
        SampleFault: see :func:`tokgate.analysis.values.measured`.
    """
    values: list[float] = measured(runs, what).tolist()
    cut = TRIM_SHARE * len(values)
    weighed = kept = 0.0
    dropped = []
    for rank, value in enumerate(sorted(values, reverse=direction(better) < 0), start=1):
        weight = min(max(rank - cut, 0.0), 1.0)
        weighed += weight * value
        kept += weight
        if weight == 0:
            dropped.append(value)
    return Arm(weighed / kept, tuple(values), tuple(dropped))


def block(reference: Sequence[float], candidate: Sequence[float], better: Better) -> Block:
    """A block from the runs of its two launches.

    Raises:
        SampleFault: a side has no usable value.
    """
    return Block(arm(reference, better, "reference runs"), arm(candidate, better, "candidate runs"))


def pair(
    reference: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]], better: Better
) -> list[Block]:
    """Blocks from launches in the order in which they were measured, first with first.

    Args:
        reference, candidate: one sequence of runs a launch; equally many launches.

    Raises:
        SampleFault: no launches, or not equally many.
    """
    if not reference or not candidate:
        raise SampleFault(f"{'reference' if not reference else 'candidate'}: no launches")
    if len(reference) != len(candidate):
        raise SampleFault(
            f"{len(reference)} launches of the reference but {len(candidate)} of the candidate: "
            "a block is one of each"
        )
    return [block(a, b, better) for a, b in zip(reference, candidate, strict=True)]


def differences(blocks: Sequence[Block]) -> list[float]:
    """ln(candidate / reference) of every block."""
    return [item.difference for item in blocks]


def level(blocks: Sequence[Block], *, candidate: bool) -> float:
    """Geometric mean of one side's trimmed means: the ratio of the two sides' is the change that is judged."""
    values = [(item.candidate if candidate else item.reference).value for item in blocks]
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))
