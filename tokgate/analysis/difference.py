"""Two servers that should be equal, or should not: ratio of speed, and what such runs could have shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tokgate.analysis.interval import Ratio, ratio_interval
from tokgate.analysis.percent import detectable_text
from tokgate.analysis.values import measured
from tokgate.load.sample import Request

Comparison = Literal["faster", "slower", "equal", "open"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A ratio of two servers' speeds and the smallest difference that these runs would have shown.

    Attributes:
        ratio: first server over second.
        smallest_detectable: as a fraction of the second's speed; ``None`` when a side has one run.
    """

    ratio: Ratio
    smallest_detectable: float | None

    def against(self, limit: float) -> Comparison:
        """``equal`` when the interval lies within the limit, ``faster`` or ``slower`` when it lies on one
        side of 1 and not within the limit, else ``open``.

        Args:
            limit: as a fraction: 0.03 is 3 %.
        """
        if self.ratio.low > 1 - limit and self.ratio.high < 1 + limit:
            return "equal"
        if self.ratio.above_one:
            return "faster"
        return "slower" if self.ratio.below_one else "open"

    def detectable_text(self) -> str:
        """``smallest detectable 4.1 %``."""
        if self.smallest_detectable is None:
            return "smallest detectable unknown: one run says nothing of its noise"
        return f"smallest detectable {detectable_text(self.smallest_detectable)}"


def difference(
    one: Sequence[float], other: Sequence[float], *, level: float = 0.95, beta: float = 0.05
) -> Difference:
    """Compare the speeds of two servers, run by run.

    Args:
        one, other: runs of one metric in one unit.
        level: confidence of the interval.
        beta: chance that a difference of the smallest detectable size is missed.

    Raises:
        SampleFault: a side has no usable value.
    """
    ratio = ratio_interval(one, other, level=level)
    return Difference(ratio, _smallest_detectable(one, other, level, beta))


def _smallest_detectable(
    one: Sequence[float], other: Sequence[float], level: float, beta: float
) -> float | None:
    """The loss whose interval would exclude 1 with probability 1 - beta: (t + t) x standard error, log scale,
    Welch's degrees of freedom."""
    from scipy.special import stdtrit

    logs = [np.log(measured(side, "runs")) for side in (one, other)]
    if min(len(side) for side in logs) < 2:
        return None
    shares = [float(np.var(side, ddof=1)) / len(side) for side in logs]
    if sum(shares) == 0:
        return 0.0
    freedom = sum(shares) ** 2 / sum(
        share**2 / (len(side) - 1) for share, side in zip(shares, logs, strict=True)
    )
    reach = float(stdtrit(freedom, (1 + level) / 2) + stdtrit(freedom, 1 - beta)) * math.sqrt(sum(shares))
    return -math.expm1(-reach)


@dataclass(frozen=True, slots=True)
class CountComparison:
    """Verify passes of two servers, request by request.

    Attributes:
        compared: requests that both servers report in all runs.
        unreported: requests without a verify count, over both.
        restless: requests whose count, or output, varies between runs of one and the same server.
        differing: requests with the same output and another count.
        other_output: requests whose output differs, so that counts may.
    """

    compared: int
    unreported: int
    restless: tuple[int, ...]
    differing: tuple[int, ...]
    other_output: tuple[int, ...]

    @property
    def equal(self) -> bool:
        """Every request was compared and has the same count."""
        return self.compared > 0 and not (
            self.unreported or self.restless or self.differing or self.other_output
        )


def compare_counts(one: Sequence[Sequence[Request]], other: Sequence[Sequence[Request]]) -> CountComparison:
    """Compare verify passes exactly.

    Args:
        one, other: requests of each run of each server; the same prompts under the same indexes.
    """
    sides = [_by_index(one), _by_index(other)]
    unreported = sum(r.verify_count is None for runs in (one, other) for run in runs for r in run)
    compared = 0
    restless: list[int] = []
    differing: list[int] = []
    other_output: list[int] = []
    for index in sorted(sides[0].keys() & sides[1].keys()):
        seen = [{(r.verify_count, r.output_ids) for r in side[index]} for side in sides]
        if any(len(kinds) > 1 for kinds in seen):
            restless.append(index)
            continue
        (count, output), (other_count, other_ids) = next(iter(seen[0])), next(iter(seen[1]))
        if count is None or other_count is None:
            continue
        compared += 1
        if count != other_count:
            (differing if output == other_ids else other_output).append(index)
    lone = len(sides[0].keys() ^ sides[1].keys())
    return CountComparison(
        compared, unreported + lone, tuple(restless), tuple(differing), tuple(other_output)
    )


def _by_index(runs: Sequence[Sequence[Request]]) -> Mapping[int, list[Request]]:
    found: dict[int, list[Request]] = {}
    for run in runs:
        for request in run:
            found.setdefault(request.index, []).append(request)
    return found
