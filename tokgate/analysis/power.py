"""What a plan can see: the smallest loss found, blocks needed, and power curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokgate.analysis.looks import BLOCKS_MIN_CHANGE, NU0_MAX, History, Plan, looks, walk
from tokgate.analysis.values import direction


def freedom_of(n: int, history: History | None) -> float:
    """Degrees of freedom of the scatter after n blocks."""
    return n - 1 + (history.nu0 if history else 0.0)


def smallest_detectable(n: int, scale: float, history: History | None, plan: Plan) -> float | None:
    """The loss, as a fraction, that ``n`` blocks of this scatter find with probability 1 - beta.

    As for a single t test of size alpha at n blocks; ``None`` below three blocks or without scatter.
    """
    from scipy.special import stdtrit

    freedom = freedom_of(n, history)
    if n < BLOCKS_MIN_CHANGE or freedom < 1:
        return None
    reach = -float(stdtrit(freedom, plan.alpha) + stdtrit(freedom, plan.beta)) * scale / math.sqrt(n)
    # Capped where the figure has no meaning any more (a loss of nearly everything, or many times as slow).
    return -math.expm1(-reach) if direction(plan.better) > 0 else math.expm1(min(reach, 50.0))


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
