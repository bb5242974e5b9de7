"""CUSUM on nightly values: sees a slide that no single night shows. It fails nothing, it opens an A/B."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokgate.analysis.values import Better, direction, measured

DECISION_INTERVAL = 7.0
ALLOWANCE = 0.5
"""h and k, in standard deviations of a night. By Siegmund's approximation a false alarm comes once in about
7000 nights of normal values, and a slide of one standard deviation is seen after about 16."""


@dataclass(frozen=True, slots=True)
class Cusum:
    """Lower cumulative sum of a series.

    Attributes:
        path: the sum after each night, in standard deviations.
        alarm: 0-based night of the first alarm, or ``None``.
        since: 0-based night from which the sum that led to the alarm grew: where the change likely began.
    """

    path: tuple[float, ...]
    alarm: int | None
    since: int | None


def cusum(values: Sequence[float], *, center: float, spread: float, better: Better) -> Cusum:
    """Watch for a slide towards the worse.

    Args:
        values: one a night, in the metric's unit.
        center: what a night gave when all was well, same unit.
        spread: standard deviation of a night's value on the log scale when all was well (0.01 is 1 %).
        better: which direction is good.

    Raises:
        SampleFault: a value that cannot be a measurement.
        ValueError: ``spread`` or ``center`` not finite and above 0.

    Source: Page, Biometrika 41 (1954) 100; Siegmund, Sequential Analysis (1985) for the run lengths.
    """
    if not (math.isfinite(spread) and spread > 0 and math.isfinite(center) and center > 0):
        raise ValueError(f"center and spread are finite and above 0, not {center!r} and {spread!r}")
    sign = direction(better)
    total, since, path = 0.0, 0, []
    alarm: int | None = None
    began: int | None = None
    for night, value in enumerate(measured(values, "nightly values")):
        worse = -sign * math.log(value / center) / spread
        if total == 0:
            since = night
        total = max(0.0, total + worse - ALLOWANCE)
        path.append(total)
        if alarm is None and total > DECISION_INTERVAL:
            alarm, began = night, since
    return Cusum(tuple(path), alarm, began)
