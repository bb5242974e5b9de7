"""Ratio of two sets of runs on servers that stand: what NET_LOSS and speed-ups are judged by.

The claim is about the servers that were measured, so runs are the unit and no launch is generalised from:
the interval does not cover what another launch would do, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokgate.analysis.values import Values, measured

UNCOVERED = "launch effect not covered"


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of two means with its interval.

    Attributes:
        value: mean of the numerator's runs / mean of the denominator's.
        low, high: interval at ``level``; NaN-free: 0 and infinity where the data bound nothing.
        level: confidence.
        numerator_mean, denominator_mean: in the metric's unit.
        numerator_runs, denominator_runs: how many runs.
        note: what the interval does not cover.
    """

    value: float
    low: float
    high: float
    level: float
    numerator_mean: float
    denominator_mean: float
    numerator_runs: int
    denominator_runs: int
    note: str = UNCOVERED

    @property
    def below_one(self) -> bool:
        """The whole interval lies below 1: a net loss when higher is better."""
        return self.high < 1

    @property
    def above_one(self) -> bool:
        """The whole interval lies above 1."""
        return self.low > 1

    def text(self) -> str:
        """``0.72x (95 % CI 0.64..0.80, 5 runs, launch effect not covered)``."""
        runs = f"{self.numerator_runs} run{'s' if self.numerator_runs != 1 else ''}"
        return f"{self.value:.2f}x (95 % CI {self.low:.2f}..{self.high:.2f}, {runs}, {self.note})".replace(
            "95 %", f"{100 * self.level:g} %"
        )


def ratio_interval(numerator: Sequence[float], denominator: Sequence[float], *, level: float = 0.95) -> Ratio:
    """Ratio of means by Fieller's theorem, with Welch's degrees of freedom.

    With a single value as denominator (a figure from elsewhere, taken as exact) this is the t interval of
    the numerator's mean, divided by it. Untrimmed: a claim about these servers leaves no run out.

    Args:
        numerator, denominator: runs of one metric in one unit, each at least one.
        level: confidence of the interval.

    Returns:
        With a single numerator run, or where the denominator's own interval reaches 0, the interval is
        unbounded: (0, inf).

    Raises:
        SampleFault: a side has no usable value.

    Source: Fieller, JRSS B 16 (1954) 175; Satterthwaite, Biometrics Bulletin 2 (1946) 110.
    """
    top, bottom = measured(numerator, "numerator runs"), measured(denominator, "denominator runs")
    value = float(top.mean() / bottom.mean())
    low, high = _fieller(top, bottom, value, level)
    note = UNCOVERED
    if len(bottom) == 1:
        note = f"{UNCOVERED}; the denominator is a single figure, taken as exact"
    if len(top) == 1:
        note = f"{UNCOVERED}; a single run says nothing of its noise"
    return Ratio(
        # Rounding must not put the ratio outside its own interval when there is no scatter.
        value,
        min(low, value),
        max(high, value),
        level,
        float(top.mean()),
        float(bottom.mean()),
        len(top),
        len(bottom),
        note,
    )


def _error(values: Values) -> float:
    """Variance of the mean; 0 for a single figure."""
    return float(np.var(values, ddof=1) / len(values)) if len(values) > 1 else 0.0


def _fieller(top: Values, bottom: Values, value: float, level: float) -> tuple[float, float]:
    from scipy.special import stdtrit

    if len(top) == 1:
        return 0.0, math.inf
    v_top, v_bottom = _error(top), _error(bottom)
    share_top, share_bottom = v_top, value * value * v_bottom
    if share_top + share_bottom == 0:
        return value, value
    freedom = (share_top + share_bottom) ** 2 / (
        share_top**2 / (len(top) - 1) + (share_bottom**2 / (len(bottom) - 1) if len(bottom) > 1 else 0.0)
    )
    t2 = float(stdtrit(freedom, (1 + level) / 2)) ** 2
    mean_top, mean_bottom = float(top.mean()), float(bottom.mean())
    # (mean_top - x mean_bottom)^2 <= t^2 (v_top + x^2 v_bottom), a quadratic in x.
    a = mean_bottom**2 - t2 * v_bottom
    c = mean_top**2 - t2 * v_top
    if a <= 0:
        return 0.0, math.inf
    b = mean_top * mean_bottom
    root = math.sqrt(max(b * b - a * c, 0.0))
    return max((b - root) / a, 0.0), (b + root) / a
