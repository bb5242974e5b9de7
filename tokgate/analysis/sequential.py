"""The three-way sequential verdict on a build: REGRESSION, PASS (or IMPROVED), or not yet decided.

Call :func:`judge` after every block with all blocks so far and stop at the first answer that is not
INCONCLUSIVE. The formula, where it departs from the first design, and the simulation that chose its numbers
are in docs/decisions/sequential-test.md; its measured error rates in docs/explanation/decision.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokgate.analysis import evidence
from tokgate.analysis.decision import Decision, DecisionKind
from tokgate.analysis.values import Better, Values, check_rates, direction, log_limit
from tokgate.errors import SampleFault

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
    """The statistics of :func:`judge`, vectorised: also what benchmarks.decision measures.

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


def judge(differences: Sequence[float], plan: Plan, history: History | None = None) -> Decision:
    """Judge a build from all block differences so far.

    Args:
        differences: ln(candidate / reference) of each block, in any order.
        plan: limit and error rates.
        history: scatter known from calibration. Without one the history-free rule judges, which needs
            more blocks.

    Raises:
        SampleFault: no differences, or one that is not finite.
    """
    raw = np.asarray(differences, dtype=np.float64)
    if raw.ndim != 1 or raw.size == 0 or not np.isfinite(raw).all():
        raise SampleFault("block differences: none, or one that is not a finite number")
    d = np.sort(direction(plan.better) * raw)  # sorted: the order of blocks must not move the last bit
    n, mean = len(d), float(d.mean())
    squares = float(((d - mean) ** 2).sum())
    short = history is not None and history.blocks < ENOUGH_BLOCKS
    used = None if short else history
    at = looks(
        np.array([float(n)]),
        np.array([mean]),
        np.array([squares]),
        plan,
        None if used is None else np.array([used.s0]),
        used.nu0 if used else NU0_MAX,
    )
    kind = _kind(at, plan)
    s = math.sqrt(squares / (n - 1)) if n > 1 else None
    decision = Decision(
        kind=kind,
        ratio=math.exp(direction(plan.better) * mean),
        interval=_interval(mean, n, float(at.scale[0]), used, plan.better),
        n=n,
        s=s,
        s0=history.s0 if history else None,
        smallest_detectable=smallest_detectable(n, float(at.scale[0]), used, plan),
        blocks_needed=0 if kind != "INCONCLUSIVE" else blocks_needed(n, mean, squares, plan, used),
        method="sequential, with history" if used else "sequential, history-free",
        limit=plan.limit,
    )
    return replace(decision, notes=tuple(_notes(decision, plan, history, used)))


def _kind(at: Looks, plan: Plan) -> DecisionKind:
    regression, improved, passed = (bool(flag[0]) for flag in at.kinds(plan.theta))
    if regression:
        return "REGRESSION"
    if improved:
        return "IMPROVED"
    return "PASS" if passed else "INCONCLUSIVE"


def _freedom(n: int, history: History | None) -> float:
    return n - 1 + (history.nu0 if history else 0.0)


def _interval(
    mean: float, n: int, scale: float, history: History | None, better: Better
) -> tuple[float, float] | None:
    from scipy.special import stdtrit

    freedom = _freedom(n, history)
    if freedom < 1:
        return None
    reach = float(stdtrit(freedom, 0.975)) * scale / math.sqrt(n)
    ends = sorted((direction(better) * (mean - reach), direction(better) * (mean + reach)))
    # Rounding must not put the ratio outside its own interval when there is no scatter.
    ratio = math.exp(direction(better) * mean)
    return min(math.exp(ends[0]), ratio), max(math.exp(ends[1]), ratio)


def smallest_detectable(n: int, scale: float, history: History | None, plan: Plan) -> float | None:
    """The loss, as a fraction, that ``n`` blocks of this scatter find with probability 1 - beta.

    As for a single t test of size alpha at n blocks; ``None`` below three blocks or without scatter.
    """
    from scipy.special import stdtrit

    freedom = _freedom(n, history)
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
    future = np.arange(n + 1, n + 1 + horizon, dtype=np.float64)
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
    return int(decided.argmax()) + 1 if decided.any() else None


def _notes(decision: Decision, plan: Plan, history: History | None, used: History | None) -> list[str]:
    from scipy.special import fdtrc

    notes = []
    n, s = decision.n, decision.s
    if n == 1:
        notes.append("one launch a side: what this launch did and what the build did cannot be told apart")
    if history is None:
        notes.append(
            "no calibration for this host class and profile: judged without a history (tokgate calibrate)"
        )
    elif used is None:
        notes.append(
            f"calibration holds {history.blocks} A/A blocks of {ENOUGH_BLOCKS}: judged without a history"
        )
    elif s is not None and float(fdtrc(n - 1, history.blocks, (s / history.s0) ** 2)) < 0.01:
        notes.append(f"NOISY: scatter today {100 * s:.1f} %, {s / history.s0:.1f} x the calibration")
    low, high = decision.interval or (0.0, math.inf)
    loses = high < 1 if direction(plan.better) > 0 else low > 1
    if decision.kind == "PASS" and loses:
        notes.append("slower beyond doubt, but by less than the limit")
    if decision.kind == "INCONCLUSIVE":
        if decision.blocks_needed is not None:
            notes.append(f"about {decision.blocks_needed} more blocks would decide if mean and scatter hold")
        elif used is not None or n > 1:
            notes.append(
                "lies between no change and the limit: more blocks of this scatter would hardly decide"
            )
    return notes
