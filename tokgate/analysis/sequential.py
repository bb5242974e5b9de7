"""The three-way sequential verdict on a build: REGRESSION, PASS (or IMPROVED), or not yet decided.

Call :func:`judge` after every block with all blocks so far and stop at the first answer that is not
INCONCLUSIVE. Its measured error rates are in docs/explanation/decision.md, the reasons for its form in
docs/decisions/sequential-test.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tokgate.analysis.decision import Decision, DecisionKind
from tokgate.analysis.looks import ENOUGH_BLOCKS, NU0_MAX, History, Looks, Plan, looks
from tokgate.analysis.percent import percent_text
from tokgate.analysis.power import blocks_needed, freedom_of, smallest_detectable
from tokgate.analysis.values import Better, direction, ratio_of
from tokgate.errors import SampleFault

__all__ = ["History", "Plan", "judge"]


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
        ratio=ratio_of(direction(plan.better) * mean),
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


def _interval(
    mean: float, n: int, scale: float, history: History | None, better: Better
) -> tuple[float, float] | None:
    from scipy.special import stdtrit

    freedom = freedom_of(n, history)
    if freedom < 1:
        return None
    reach = float(stdtrit(freedom, 0.975)) * scale / math.sqrt(n)
    ends = sorted((direction(better) * (mean - reach), direction(better) * (mean + reach)))
    # Rounding must not put the ratio outside its own interval when there is no scatter.
    ratio = ratio_of(direction(better) * mean)
    return min(ratio_of(ends[0]), ratio), max(ratio_of(ends[1]), ratio)


def _notes(decision: Decision, plan: Plan, history: History | None, used: History | None) -> list[str]:
    from scipy.special import fdtrc

    notes = []
    n, s = decision.n, decision.s
    if n == 1:
        notes.append("one launch a side: what this launch did and what the build did cannot be told apart")
    if history is None:
        notes.append("no calibration: judged without a history, which takes more blocks")
    elif used is None:
        notes.append(
            f"calibration holds {history.blocks} A/A blocks of {ENOUGH_BLOCKS}: judged without a history"
        )
    elif s is not None and float(fdtrc(n - 1, history.blocks, (s / history.s0) ** 2)) < 0.01:
        notes.append(f"NOISY: scatter today {percent_text(s)}, {s / history.s0:.1f} x the calibration")
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
