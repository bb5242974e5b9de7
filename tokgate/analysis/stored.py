"""Against a stored baseline, on another day: does today lie where another session would have?

A recorded session is one value of the same build on another day. Sessions differ by more than their runs
do (launch, day, host), so the spread *between* sessions judges, and one session alone, however many runs
it holds, cannot say that a build is slower: the same build measured 90 tok/s one day and 82 another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tokgate.analysis.blocks import TRIM_SHARE, arm
from tokgate.analysis.decision import Decision, DecisionKind
from tokgate.analysis.interval import UNCOVERED, ratio_interval
from tokgate.analysis.values import Better, Values, check_rates, direction, log_limit, measured, ratio_of
from tokgate.errors import SampleFault

ENOUGH_SESSIONS = 10
METHOD = "stored sessions"


def judge_stored(
    sessions: Sequence[Sequence[float]],
    runs: Sequence[float],
    *,
    better: Better,
    limit: float,
    alpha: float,
    beta: float = 0.05,
    days: Sequence[str] | None = None,
) -> Decision:
    """Judge today's runs against recorded sessions.

    ``T = (x - mean) / (s sqrt(1 + 1/J))`` with x the log of today's trimmed mean, mean and s those of the J
    sessions, Student t with J - 1 degrees of freedom: REGRESSION if T < -t(alpha), PASS if a loss of
    ``limit`` is ruled out at beta/2. When today's runs scatter more than the recorded ones did, the excess is
    added to the spread.

    Args:
        sessions: runs of each recorded session, in the metric's unit.
        runs: today's runs of one launch.
        better: ``higher`` or ``lower``.
        limit: the loss that fails, as a fraction (0.03 is 3 %).
        alpha: chance of a false REGRESSION, of this verdict.
        beta: chance to miss a loss of ``limit``.
        days: the day of each session. Sessions of one day share that day's drift and count as one.

    Returns:
        INCONCLUSIVE with one session, whatever the change. ``blocks_needed`` is ``None`` when undecided:
        a relaunch of the reference beside the candidate is what decides.

    Raises:
        SampleFault: no sessions, or a value that cannot be a measurement.
    """
    check_rates(alpha, beta)
    theta, sign = log_limit(limit, better), direction(better)
    if not sessions:
        raise SampleFault("stored baseline: no sessions")
    if days is not None and len(days) != len(sessions):
        raise SampleFault(f"stored baseline: {len(sessions)} sessions but {len(days)} days")
    recorded = [measured(session, f"session {i + 1}") for i, session in enumerate(sessions)]
    values = np.array([sign * math.log(arm(list(item), better).value) for item in recorded])
    values = np.sort(values if days is None else _by_day(values, days))
    now = measured(runs, "today's runs")
    x = sign * math.log(arm(list(now), better).value)
    shift = x - float(values.mean())
    count = len(values)
    notes = []
    if days is not None and count < len(sessions):
        notes.append(f"{len(sessions)} sessions of {count} day{'s' if count > 1 else ''}: a day counts once")
    if count == 1:
        return _one_session(recorded, now, shift, better, limit, notes)
    if count < ENOUGH_SESSIONS:
        notes.append(
            f"{count} recorded sessions of {ENOUGH_SESSIONS}: judged with the wider interval of {count}"
        )
    between = float(values.std(ddof=1))
    if between == 0 and all(float(np.ptp(item)) == 0 for item in [*recorded, now]):
        return _without_noise(shift, count, better, limit, notes)
    spread, excess = _spread(between, recorded, now)
    if excess:
        notes.append(
            "NOISY: today's runs scatter more than the recorded ones; their excess widens the interval"
        )
    error = spread * math.sqrt(1 + 1 / count)
    from scipy.special import stdtrit

    t_change, t_pass = (-float(stdtrit(count - 1, rate)) for rate in (alpha, beta / 2))
    kind: DecisionKind = "INCONCLUSIVE"
    if shift + theta > t_pass * error:
        kind = "IMPROVED" if shift > t_change * error and shift >= theta / 2 else "PASS"
    elif shift < -t_change * error and shift <= -theta / 2:
        kind = "REGRESSION"
    if kind == "PASS" and shift < -t_change * error:
        notes.append("slower beyond doubt, but by less than the limit")
    if kind == "INCONCLUSIVE":
        notes.append("measure the reference beside the candidate on this host to decide")
    reach = float(stdtrit(count - 1, 0.975)) * error
    least = (t_change - float(stdtrit(count - 1, beta))) * error
    return Decision(
        kind=kind,
        ratio=ratio_of(sign * shift),
        interval=_ends(shift, reach, sign),
        n=count,
        s=spread,
        s0=None,
        smallest_detectable=-math.expm1(-least) if sign > 0 else math.expm1(min(least, 50.0)),
        blocks_needed=None if kind == "INCONCLUSIVE" else 0,
        method=METHOD,
        limit=limit,
        notes=tuple(notes),
    )


def _by_day(values: Values, days: Sequence[str]) -> Values:
    groups: dict[str, list[float]] = {}
    for value, day in zip(values, days, strict=True):
        groups.setdefault(day, []).append(float(value))
    return np.array([math.fsum(group) / len(group) for group in groups.values()])


def _within(runs: Values) -> float:
    """Variance that the scatter of runs gives their mean, log scale."""
    if len(runs) < 2:
        return 0.0
    return float(np.var(np.log(runs), ddof=1)) / (len(runs) * (1 - TRIM_SHARE))


def _spread(between: float, recorded: Sequence[Values], now: Values) -> tuple[float, bool]:
    """Standard deviation of one session's value, widened where today's runs are the noisier ones.

    The spread between sessions contains what their runs scattered, so it is never taken as less than that.
    """
    usual = float(np.mean([_within(item) for item in recorded]))
    today = _within(now)
    base = max(between**2, usual)
    return math.sqrt(base + max(today - usual, 0.0)), today > 4 * usual and today > 0.1 * base


def _ends(shift: float, reach: float, sign: int) -> tuple[float, float]:
    low, high = sorted((ratio_of(sign * (shift - reach)), ratio_of(sign * (shift + reach))))
    ratio = ratio_of(sign * shift)
    return min(low, ratio), max(high, ratio)


def _one_session(
    recorded: Sequence[Values], now: Values, shift: float, better: Better, limit: float, notes: list[str]
) -> Decision:
    """One recorded value of the build: the interval of these runs is all that can be given."""
    told = ratio_interval(list(now), list(np.concatenate(recorded)))
    known = len(now) > 1 and len(recorded[0]) > 1 and math.isfinite(told.high)
    sign = direction(better)
    ratio = ratio_of(sign * shift)
    # The trimmed means and the untrimmed interval differ a little: the interval is moved onto the ratio.
    interval = (told.low / told.value * ratio, told.high / told.value * ratio) if known else None
    notes.append(
        "one recorded session: how much sessions of one build differ is unknown, so no change can be laid to "
        f"the build; the interval is of these runs, {UNCOVERED}"
    )
    if shift < -log_limit(limit, better):
        notes.append("slower than the one recorded session by more than the limit")
    notes.append("record more sessions, or measure the reference beside the candidate on this host")
    return Decision(
        kind="INCONCLUSIVE",
        ratio=ratio,
        interval=interval,
        n=1,
        s=None,
        s0=None,
        smallest_detectable=None,
        blocks_needed=None,
        method=METHOD,
        limit=limit,
        notes=tuple(notes),
    )


def _without_noise(shift: float, count: int, better: Better, limit: float, notes: list[str]) -> Decision:
    """Every run of every session gave the same value: the metric has no noise, values are compared."""
    theta, sign = log_limit(limit, better), direction(better)
    ratio = ratio_of(sign * shift)
    kind: DecisionKind = "PASS"
    # Two equal sessions may be chance; three and more, to the last digit, are not.
    if count < 3 and shift != 0:
        kind = "INCONCLUSIVE"
    elif shift <= -theta:
        kind = "REGRESSION"
    elif shift >= theta:
        kind = "IMPROVED"
    return Decision(
        kind=kind,
        ratio=ratio,
        interval=(ratio, ratio),
        n=count,
        s=0.0,
        s0=None,
        smallest_detectable=limit,
        blocks_needed=None if kind == "INCONCLUSIVE" else 0,
        method=METHOD,
        limit=limit,
        notes=(*notes, f"no scatter at all in {count} sessions and today: values compared with the limit"),
    )
