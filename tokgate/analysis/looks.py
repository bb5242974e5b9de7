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


@dataclass(frozen=True, slots=True)
class Tuning:
    """The numbers of the test, chosen by simulation (``python -m benchmarks.decision.choices``).

    Attributes:
        steps, weights: alternatives to "no change", in limits, and their weights, which add up to 1.
        pass_steps, pass_weights: alternatives to "a loss of one limit", in limits away from it: a loss of
            half a limit, none, gains.
        final_alpha, final_beta: shares kept for the one fixed-size t test when the last block is in.
        pass_floor: least ln evidence for a PASS.
        overshoot: mean overshoot of a normal random walk over a boundary, in standard deviations of a step
            (Siegmund 1985); taken off the bound of PASS only.
        widen_from: blocks from which a scatter today above the history's widens the prior.
    """

    steps: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    weights: tuple[float, ...] = (0.64, 0.20, 0.09, 0.04, 0.02, 0.01)
    pass_steps: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    pass_weights: tuple[float, ...] = (0.10, 0.65, 0.20, 0.05)
    final_alpha: float = 0.5
    final_beta: float = 0.25
    pass_floor: float = 0.5
    overshoot: float = 0.583
    widen_from: int = 2


TUNING = Tuning()


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
    n: Values,
    mean: Values,
    squares: Values,
    plan: Plan,
    s0: Values | None,
    nu0: float = NU0_MAX,
    tuning: Tuning = TUNING,
) -> Looks:
    """What :func:`tokgate.analysis.sequential.judge` looks at, for arrays of series.

    Args:
        n: blocks so far.
        mean: mean difference on the log scale, positive is better.
        squares: sum of squared deviations from ``mean``.
        plan: limit and error rates.
        s0: scatter known from calibration, or ``None`` without a history.
        nu0: its degrees of freedom.
        tuning: the numbers of the test.
    """
    theta = plan.theta
    n = np.asarray(n, dtype=np.float64)
    mean, squares = np.asarray(mean, dtype=np.float64), np.asarray(squares, dtype=np.float64)
    variance = squares / np.maximum(n - 1, 1)
    bound_change = np.full(n.shape, math.log(1 / ((1 - tuning.final_alpha) * plan.alpha)))
    bound_pass = np.full(n.shape, math.log(1 / ((1 - tuning.final_beta) * plan.beta)))
    if s0 is None:
        scale = np.sqrt(variance)
        loss = evidence.without_history(-mean, squares, n)
        gain = evidence.without_history(mean, squares, n)
        passes = evidence.without_history(mean + theta, squares, n)
    else:
        today = np.where(n >= tuning.widen_from, variance, 0)
        spread = nu0 * np.maximum(np.asarray(s0) ** 2, today) + squares
        scale = np.sqrt(spread / (nu0 + n - 1))
        against = (spread, n, nu0, theta, tuning.steps, tuning.weights)
        loss = evidence.with_history(-mean, *against)
        gain = evidence.with_history(mean, *against)
        passes = evidence.with_history(
            mean + theta, spread, n, nu0, theta, tuning.pass_steps, tuning.pass_weights
        )
        overshoot = tuning.overshoot * theta / np.sqrt(spread / (nu0 + n))
        bound_pass = np.maximum(bound_pass - overshoot, tuning.pass_floor)
    last = n >= plan.blocks_max
    if last.any():
        share = tuning.final_alpha * plan.alpha
        loss = _final(loss, -mean, variance, n, last, share)
        gain = _final(gain, mean, variance, n, last, share)
        passes = _final(passes, mean + theta, variance, n, last, tuning.final_beta * plan.beta)
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


def walk(
    differences: Values,
    plan: Plan,
    s0: Values | None,
    nu0: float = NU0_MAX,
    tuning: Tuning = TUNING,
) -> Walk:
    """Judge whole series after every block until decided, as the gate does.

    Args:
        differences: shape (series, blocks), log scale, positive is better; ``plan.blocks_max`` columns
            or more.
        plan: limit and error rates.
        s0: shape (series,), or ``None`` without a history.
        nu0: its degrees of freedom.
        tuning: the numbers of the test.
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
        at = looks(n, average, squares, plan, None if s0 is None else s0[open_], nu0, tuning)
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
