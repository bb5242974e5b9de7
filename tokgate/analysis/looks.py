"""The statistics of the sequential test, vectorised over any number of series.

The formula, where it departs from the first design, and the simulation that chose its numbers are in
docs/decisions/sequential-test.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokgate.analysis import evidence
from tokgate.analysis.values import Better, Values, check_rates, log_limit

NU0_MAX = 6.0
ENOUGH_BLOCKS = 20
BLOCKS_MIN_CHANGE = 3
BLOCKS_MIN_PASS = 2
PASS_FLOOR = 0.5
OVERSHOOT = 0.583
"""Mean overshoot of a normal random walk over a boundary, in standard deviations of a step (Siegmund)."""
FINAL_ALPHA_SHARE = 0.5
FINAL_BETA_SHARE = 0.4
"""What is kept of alpha and of beta for the one fixed-size t test when the last block is in."""


@dataclass(frozen=True, slots=True)
class History:
    """What calibration knows of the scatter of block differences (log scale) on a host class and profile.

    Attributes:
        s0: root mean square of A/A block differences.
        blocks: how many A/A blocks that is.
    """

    s0: float
    blocks: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.s0) and self.s0 > 0) or self.blocks < 1:
            raise ValueError(f"a history needs a scatter above 0 and at least one block, not {self!r}")

    @property
    def nu0(self) -> float:
        """Degrees of freedom that it is trusted for: few, because today may differ from the days recorded."""
        return min(NU0_MAX, float(self.blocks))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of the test.

    Attributes:
        limit: the loss that fails, as a fraction (0.03 is 3 %).
        better: ``higher`` or ``lower``.
        alpha: chance of a false REGRESSION, of this verdict (see :mod:`tokgate.analysis.multiplicity`).
        beta: chance to miss a loss of ``limit``.
        blocks_max: the block after which the fixed-size test is made.
    """

    limit: float
    better: Better
    alpha: float
    beta: float = 0.05
    blocks_max: int = 40

    def __post_init__(self) -> None:
        check_rates(self.alpha, self.beta)
        log_limit(self.limit, self.better)
        if self.blocks_max < BLOCKS_MIN_CHANGE:
            raise ValueError(f"blocks_max is at least {BLOCKS_MIN_CHANGE}, not {self.blocks_max}")

    @property
    def theta(self) -> float:
        """The limit as a positive distance on the log scale."""
        return log_limit(self.limit, self.better)


@dataclass(frozen=True, slots=True)
class Looks:
    """Test statistics for arrays of series, one entry for each (vectorised over any shape).

    Attributes:
        loss, gain, passes: ln evidence for a loss, for a gain, and against a loss of one limit.
        bound_change, bound_pass: what they must reach.
        scale: pooled scatter of one block difference.
        mean: of the differences, positive is better.
    """

    loss: Values
    gain: Values
    passes: Values
    bound_change: Values
    bound_pass: Values
    scale: Values
    mean: Values
    n: Values

    def kinds(self, theta: float) -> tuple[Any, Any, Any]:
        """Boolean arrays (regression, improved, passed), at most one of them true."""
        passed = (self.passes >= self.bound_pass) & (self.n >= BLOCKS_MIN_PASS)
        enough = self.n >= BLOCKS_MIN_CHANGE
        loss = (self.loss >= self.bound_change) & enough & (self.mean <= -theta / 2) & ~passed
        gain = (self.gain >= self.bound_change) & enough & (self.mean >= theta / 2)
        return loss, gain, passed & ~gain


def looks(
    n: Values, mean: Values, squares: Values, plan: Plan, s0: Values | None, nu0: float = NU0_MAX
) -> Looks:
    """What :func:`tokgate.analysis.sequential.judge` looks at, for arrays of series.

    Args:
        n: blocks so far.
        mean: mean difference on the log scale, positive is better.
        squares: sum of squared deviations from ``mean``.
        plan: limit and error rates.
        s0: scatter known from calibration, or ``None`` without a history.
        nu0: its degrees of freedom.
    """
    theta = plan.theta
    n = np.asarray(n, dtype=np.float64)
    mean, squares = np.asarray(mean, dtype=np.float64), np.asarray(squares, dtype=np.float64)
    variance = squares / np.maximum(n - 1, 1)
    bound_change = np.full(n.shape, math.log(1 / ((1 - FINAL_ALPHA_SHARE) * plan.alpha)))
    bound_pass = np.full(n.shape, math.log(1 / ((1 - FINAL_BETA_SHARE) * plan.beta)))
    if s0 is None:
        scale = np.sqrt(variance)
        loss = evidence.without_history(-mean, squares, n)
        gain = evidence.without_history(mean, squares, n)
        passes = evidence.without_history(mean + theta, squares, n)
    else:
        spread = nu0 * np.maximum(np.asarray(s0) ** 2, variance) + squares
        scale = np.sqrt(spread / (nu0 + n - 1))
        loss = evidence.with_history(-mean, spread, n, nu0, theta)
        gain = evidence.with_history(mean, spread, n, nu0, theta)
        passes = evidence.with_history(
            mean + theta, spread, n, nu0, theta, evidence.PASS_STEPS, evidence.PASS_STEP_WEIGHTS
        )
        overshoot = OVERSHOOT * theta / np.sqrt(spread / (nu0 + n))
        bound_pass = np.maximum(bound_pass - overshoot, PASS_FLOOR)
    last = n >= plan.blocks_max
    if last.any():
        loss, gain = (
            _final(loss, -mean, variance, n, last, FINAL_ALPHA_SHARE * plan.alpha),
            _final(gain, mean, variance, n, last, FINAL_ALPHA_SHARE * plan.alpha),
        )
        passes = _final(passes, mean + theta, variance, n, last, FINAL_BETA_SHARE * plan.beta)
    return Looks(loss, gain, passes, bound_change, bound_pass, scale, mean, n)


def _final(found: Values, shift: Values, variance: Values, n: Values, last: Any, share: float) -> Values:
    """Where the last block is in, a fixed-size t test with a share of the error rate decides as well."""
    from scipy.special import stdtr

    with np.errstate(divide="ignore", invalid="ignore"):
        t = shift / np.sqrt(variance / n)
        significant = stdtr(n - 1, -t) <= share
    return np.where(last & significant, np.inf, found)


@dataclass(frozen=True, slots=True)
class Walk:
    """How series of blocks ended when each was judged after every block.

    Attributes:
        regression, improved, passed: boolean, one entry a series; none true: undecided at ``blocks_max``.
        blocks: blocks used.
        mean, scale: of the differences at the stop, as in :class:`Looks`.
    """

    regression: Any
    improved: Any
    passed: Any
    blocks: Any
    mean: Values
    scale: Values


def walk(differences: Values, plan: Plan, s0: Values | None, nu0: float = NU0_MAX) -> Walk:
    """Judge whole series after every block until decided, as the gate does.

    Args:
        differences: shape (series, blocks), log scale, positive is better; ``plan.blocks_max`` columns
            or more.
        plan: limit and error rates.
        s0: shape (series,), or ``None`` without a history.
        nu0: its degrees of freedom.
    """
    d = differences[:, : plan.blocks_max]
    series, length = d.shape
    flags = [np.zeros(series, dtype=bool) for _ in range(3)]
    blocks = np.full(series, length)
    mean, scale = np.empty(series), np.empty(series)
    open_ = np.arange(series)
    total, square = np.zeros(series), np.zeros(series)
    for k in range(length):
        total[open_] += d[open_, k]
        square[open_] += d[open_, k] ** 2
        n = np.full(len(open_), k + 1.0)
        average = total[open_] / n
        squares = np.maximum(square[open_] - n * average**2, 0)
        at = looks(n, average, squares, plan, None if s0 is None else s0[open_], nu0)
        decided = np.zeros(len(open_), dtype=bool)
        for flag, found in zip(flags, at.kinds(plan.theta), strict=True):
            flag[open_] = found
            decided |= found
        mean[open_], scale[open_] = average, at.scale
        blocks[open_[decided]] = k + 1
        open_ = open_[~decided]
        if not len(open_):
            break
    return Walk(flags[0], flags[1], flags[2], blocks, mean, scale)
