"""The rules that are held against each other, each as it is used in practice.

A rule takes a batch of series and says of each: alarm, all clear, and how many blocks it cost (a block is
one launch a side). A rule that cannot answer "not yet known" calls everything that is no alarm all clear.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from benchmarks.decision.model import RUNS_PER_ARM, Series, trimmed
from tokgate.analysis.looks import NU0_MAX, Plan, walk

Flags = NDArray[np.bool_]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ends:
    """What a rule said: alarm, all clear, blocks used, and its 95 % interval (log scale) if it gives one."""

    alarm: Flags
    clear: Flags
    blocks: Values
    low: Values | None = None
    high: Values | None = None


Rule = Callable[[Series], Ends]


def _fixed(alarm: Flags, blocks: float) -> Ends:
    return Ends(alarm, ~alarm, np.full(alarm.shape, blocks))


def ours(plan: Plan, *, history: bool = True) -> Rule:
    """tokgate.analysis.sequential, after every block until decided."""

    def rule(series: Series) -> Ends:
        end = walk(series.differences, plan, series.s0 if history else None)
        freedom = end.blocks - 1 + (NU0_MAX if history else 0)
        reach = stdtrit(np.maximum(freedom, 1), 0.975) * end.scale / np.sqrt(end.blocks)
        return Ends(
            end.regression,
            end.passed | end.improved,
            end.blocks.astype(float),
            end.mean - reach,
            end.mean + reach,
        )

    return rule


def sprt(plan: Plan, sigma: float) -> Rule:
    """Wald's test of no change against the limit, with the true scatter known: the yardstick of cost."""
    upper, lower = math.log((1 - plan.beta) / plan.alpha), math.log(plan.beta / (1 - plan.alpha))

    def rule(series: Series) -> Ends:
        d = series.differences
        path = np.cumsum(-plan.theta * (d + plan.theta / 2), axis=1) / sigma**2
        stop = (path >= upper) | (path <= lower)
        at = np.where(stop.any(axis=1), stop.argmax(axis=1), d.shape[1] - 1)
        last = path[np.arange(len(d)), at]
        return Ends(last >= upper, last <= lower, at + 1.0)

    return rule


def threshold(share: float) -> Rule:
    """Mean of five runs of one launch against the same of the reference, fixed threshold."""

    def rule(series: Series) -> Ends:
        a, b = (np.exp(x[:, 0, :5]).mean(axis=1) for x in (series.reference, series.candidate))
        return _fixed(b < (1 - share) * a, 1)

    return rule


def welch(level: float) -> Rule:
    """Welch's t test on ten runs of one launch a side, two-sided level, worse direction alarms."""

    def rule(series: Series) -> Ends:
        a, b = (np.exp(x[:, 0, :10]) for x in (series.reference, series.candidate))
        va, vb = a.var(axis=1, ddof=1) / 10, b.var(axis=1, ddof=1) / 10
        t = (b.mean(axis=1) - a.mean(axis=1)) / np.sqrt(va + vb)
        freedom = (va + vb) ** 2 / (va**2 / 9 + vb**2 / 9)
        return _fixed(stdtr(freedom, t) < level / 2, 1)

    return rule


@cache
def mann_whitney_bound(a: int, b: int, level: float) -> int:
    """Largest U whose two-sided exact p is below the level; -1 when none is."""
    counts = np.zeros((a + 1, a * b + 1))
    counts[0, 0] = 1
    for rank in range(1, a + b + 1):
        for chosen in range(min(a, rank), 0, -1):
            shift = rank - chosen
            if shift <= b:
                counts[chosen, shift:] += counts[chosen - 1, : a * b + 1 - shift]
    below = np.cumsum(counts[a]) / math.comb(a + b, a)
    return int(np.searchsorted(2 * below, level)) - 1


def mann_whitney(level: float, factor: float = 1.0) -> Rule:
    """Mann-Whitney U on ten runs of one launch a side (benchstat: .05; asv: .002 and a factor of 1.1)."""

    def rule(series: Series) -> Ends:
        a, b = series.reference[:, 0, :10], series.candidate[:, 0, :10]
        u = (b[:, :, None] > a[:, None, :]).sum(axis=(1, 2))
        far = np.median(a, axis=1) - np.median(b, axis=1) > math.log(factor)
        return _fixed((u <= mann_whitney_bound(10, 10, level)) & far, 1)

    return rule


def best_of(tries: int, share: float) -> Rule:
    """Launch again until the mean of five is within the threshold, at most so many times."""

    def rule(series: Series) -> Ends:
        a = np.exp(series.reference[:, 0, :5]).mean(axis=1)
        bad = np.stack(
            [np.exp(series.candidate[:, k, :5]).mean(axis=1) < (1 - share) * a for k in range(tries)], axis=1
        )
        alarm: Flags = np.asarray(bad.all(axis=1))
        return Ends(alarm, ~alarm, np.where(alarm, tries, bad.argmin(axis=1) + 1.0))

    return rule


def cluster_bootstrap(alpha: float, launches: int = 6, resamples: int = 400) -> Rule:
    """Percentile bootstrap over six launches a side; alarm when the upper end is below no change."""
    rng = np.random.default_rng(1)
    draws = [
        rng.multinomial(launches, np.full(launches, 1 / launches), resamples) / launches for _ in range(2)
    ]

    def rule(series: Series) -> Ends:
        levels = [
            np.stack([trimmed(side[:, k, :RUNS_PER_ARM]) for k in range(launches)], axis=1)
            for side in (series.reference, series.candidate)
        ]
        gaps = levels[1] @ draws[1].T - levels[0] @ draws[0].T
        upper = np.asarray(np.quantile(gaps, 1 - alpha, axis=1))
        return _fixed(np.less(upper, 0), launches)

    return rule
