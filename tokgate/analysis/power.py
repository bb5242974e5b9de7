"""What a plan can see: the smallest loss found, blocks needed, and power curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokgate.analysis.looks import BLOCKS_MIN_CHANGE, NU0_MAX, History, Plan, looks, walk
from tokgate.analysis.values import Values, direction

LARGEST = 50.0
"""Losses beyond are all the same, log scale."""

NEVER = 1e300
"""Stands for a loss that nothing is called for; finite, so that it can be interpolated."""

SCATTERS = 64
"""Equally likely scatters of few blocks that stand for all."""

HALVINGS = 10


def freedom_of(n: int, history: History | None) -> float:
    """Degrees of freedom of the scatter after n blocks."""
    return n - 1 + (history.nu0 if history else 0.0)


def smallest_detectable(n: int, scale: float, history: History | None, plan: Plan) -> float | None:
    """The loss, as a fraction, that the rule calls REGRESSION at block ``n`` with probability 1 - beta.

    Never below the limit: a smaller loss is let pass, often before block ``n``. By the bound that the rule itself sets
    at that block, averaged over the scatter that ``n`` blocks may happen to show: few blocks know their own scatter
    badly, and must be nearly always right.

    Args:
        n: blocks; the fixed-size test counts where they are all that the plan allows.
        scale: true scatter of a block difference, log scale.
        history: as in :func:`~tokgate.analysis.sequential.judge`.
        plan: limit and error rates.

    Returns:
        ``None`` below three blocks, and where no loss, however large, is called so often at that block: without a
        history three blocks do not reach the evidence that an alpha of 0.5 % asks for unless they are the last.
    """
    from scipy.special import chdtri, ndtr

    if n < BLOCKS_MIN_CHANGE:
        return None
    shares = (np.arange(SCATTERS) + 0.5) / SCATTERS
    scatters = np.sort(scale * np.sqrt(chdtri(n - 1, shares) / (n - 1)))
    # Sought for some of them: between two the bound is nearly a power of the scatter, with a history less so.
    known = (
        np.geomspace(scatters[0], scatters[-1], 7 if history is None else 33) if scale > 0 else np.zeros(1)
    )
    bounds = _least_called(n, known, history, plan)
    called = np.exp(np.interp(np.log(scatters), np.log(known), np.log(bounds))) if scale > 0 else bounds
    error = scale / math.sqrt(n)

    def missed(loss: float) -> float:
        if error == 0:
            return float(np.mean(called > loss))
        # Against a scatter of nearly nothing the distance may be infinite.
        with np.errstate(over="ignore"):
            return float(np.mean(ndtr((called - loss) / error)))

    low, high = 0.0, LARGEST
    if missed(high) > plan.beta:
        return None
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if missed(middle) <= plan.beta else (middle, high)
    # Capped where the figure has no meaning any more (a loss of nearly everything, or many times as slow).
    found = -math.expm1(-high) if direction(plan.better) > 0 else math.expm1(high)
    return max(found, plan.limit)


def _least_called(n: int, scatters: Values, history: History | None, plan: Plan) -> Values:
    """The least mean loss, log scale, that ``n`` blocks are called REGRESSION for when they scatter just so much.

    Infinite where none is. The verdict is monotone in the loss, so that halving finds it.
    """
    count, squares = np.full(scatters.shape, float(n)), (n - 1) * scatters**2
    s0 = None if history is None else np.full(scatters.shape, history.s0)
    nu0 = history.nu0 if history else NU0_MAX
    # Half a limit is never called. On the log scale ten halvings leave an error of 1 %.
    low, high = np.full(scatters.shape, plan.theta / 2), np.full(scatters.shape, LARGEST)
    never = ~looks(count, -high, squares, plan, s0, nu0).kinds(plan.theta)[0]
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        called = looks(count, -middle, squares, plan, s0, nu0).kinds(plan.theta)[0]
        low, high = np.where(called, low, middle), np.where(called, middle, high)
    return np.where(never, NEVER, high)


def blocks_needed(
    n: int, mean: float, squares: float, plan: Plan, history: History | None, horizon: int = 400
) -> int | None:
    """Further blocks after which the present mean and scatter, held, would decide.

    Args:
        n, mean, squares: as in :func:`looks`.
        plan: the bound on blocks is left out of account: it is a matter of budget.
        history: as in :func:`judge`; without one and with a single block nothing can be foreseen.
        horizon: how far to look.

    Returns:
        ``None`` when not within ``horizon``: the mean lies too near the middle of no change and the limit.
    """
    if history is None and n < 2:
        return None
    # Every number at first, then ever wider steps: "about 130" need not be told from "about 127".
    ahead = np.unique(np.concatenate([np.arange(1, 41), np.geomspace(41, horizon, 25).round()]))
    future = n + ahead
    variance = squares / (n - 1) if n > 1 else (history.s0**2 if history else 0.0)
    at = looks(
        future,
        np.full(future.shape, mean),
        squares + variance * (future - n),
        replace(plan, blocks_max=n + horizon + 1),
        None if history is None else np.full(future.shape, history.s0),
        history.nu0 if history else NU0_MAX,
    )
    decided = np.logical_or.reduce(at.kinds(plan.theta))
    return int(ahead[decided.argmax()]) if decided.any() else None


@dataclass(frozen=True, slots=True)
class PowerPoint:
    """What becomes of candidates with one true change.

    Attributes:
        change: true change of the metric as a fraction, negative is worse.
        regression, improved, passed, undecided: shares of the verdicts, adding up to 1.
        blocks: mean number of blocks used.
    """

    change: float
    regression: float
    improved: float
    passed: float
    undecided: float
    blocks: float


def power_curve(
    changes: Sequence[float],
    scatter: float,
    plan: Plan,
    history: History | None,
    *,
    series: int = 2000,
    seed: int = 0,
) -> list[PowerPoint]:
    """Simulate the test on normal block differences.

    Args:
        changes: true changes as fractions, negative is worse (-0.03 is a loss of 3 %).
        scatter: standard deviation of a block difference today, log scale.
        plan, history: as for :func:`tokgate.analysis.sequential.judge`.
        series: simulated candidates for each change; the same noise for every change.
        seed: of the noise.
    """
    noise = np.random.default_rng(seed).normal(0, scatter, (series, plan.blocks_max))
    s0 = None if history is None else np.full(series, history.s0)
    points: list[PowerPoint] = []
    for change in changes:
        shift = math.log1p(change if direction(plan.better) > 0 else -change)
        end = walk(noise + shift, plan, s0, history.nu0 if history else NU0_MAX)
        found, gained, passed = (float(np.mean(flag)) for flag in (end.regression, end.improved, end.passed))
        # Shares of floats: their sum may be above 1 by a rounding.
        undecided = max(0.0, 1 - found - gained - passed)
        points.append(PowerPoint(change, found, gained, passed, undecided, float(np.mean(end.blocks))))
    return points
