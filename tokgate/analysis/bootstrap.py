"""Accept length of a real pair: it differs from prompt to prompt, so requests are what is resampled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tokgate.analysis.decision import Decision, DecisionKind
from tokgate.analysis.exact import Counts, accept_length
from tokgate.analysis.values import Values, check_rates, log_limit
from tokgate.errors import SampleFault

RESAMPLES = 2000
SEED = 20260105
REQUESTS_MIN = 8
METHOD = "bootstrap over requests"


def judge_requests(
    reference: Sequence[Counts],
    candidate: Sequence[Counts],
    *,
    limit: float,
    alpha: float,
    beta: float = 0.05,
) -> Decision:
    """Judge accept length from per-request counts of the same prompts on both sides.

    Requests are drawn with replacement, the same ones for both sides, with all their runs; the standard
    error of the log ratio so found goes into Student t with one degree of freedom less than there are
    requests. (Percentiles alone would need far more resamples than 1/alpha.) The claim is about prompts like
    these.

    Args:
        reference, candidate: counts of every run, requests in the same order everywhere.
        limit: the loss that fails, as a fraction.
        alpha, beta: error rates of this verdict.

    Raises:
        SampleFault: a side is empty or numbers of requests differ.
    """
    check_rates(alpha, beta)
    theta = log_limit(limit, "higher")
    before, after = _table(reference, "reference"), _table(candidate, "candidate")
    if before.shape != after.shape:
        raise SampleFault(f"{len(before)} requests in the reference but {len(after)} in the candidate")
    size = len(before)
    totals = tuple(sum((run for run in side), ()) for side in (reference, candidate))
    shift = math.log(accept_length(totals[1]) / accept_length(totals[0]))
    if size < REQUESTS_MIN:
        note = f"{size} requests; at least {REQUESTS_MIN} are needed to tell how much they differ"
        return _decision("INCONCLUSIVE", shift, None, size, None, None, limit, (note,))
    error = _standard_error(before, after)
    from scipy.special import stdtrit

    t_change, t_pass, t_side = (-float(stdtrit(size - 1, rate)) for rate in (alpha, beta, 0.025))
    kind: DecisionKind = "INCONCLUSIVE"
    if shift + theta >= t_pass * error and shift > -theta:
        kind = "IMPROVED" if shift >= theta / 2 and shift > t_change * error else "PASS"
    elif shift < -t_change * error and shift <= -theta / 2:
        kind = "REGRESSION"
    least = -math.expm1(-(t_change + t_pass) * error)
    return _decision(kind, shift, t_side * error, size, error * math.sqrt(size), least, limit, ())


def _table(runs: Sequence[Counts], what: str) -> Values:
    """Shape (requests, 2): tokens and passes of each request, summed over runs."""
    if not runs or not runs[0]:
        raise SampleFault(f"{what}: no runs with verify counts")
    if len({len(run) for run in runs}) != 1:
        raise SampleFault(f"{what}: runs of different numbers of requests")
    table: Values = np.array([[(item.tokens, item.passes) for item in run] for run in runs], dtype=np.float64)
    return np.asarray(table.sum(axis=0))


def _standard_error(before: Values, after: Values) -> float:
    size = len(before)
    rng = np.random.default_rng(SEED)
    weights = rng.multinomial(size, np.full(size, 1 / size), RESAMPLES).astype(np.float64)
    logs = [np.log(weights @ side[:, 0]) - np.log(weights @ side[:, 1]) for side in (before, after)]
    return float(np.std(logs[1] - logs[0], ddof=1)) * math.sqrt(size / (size - 1))


def _decision(
    kind: DecisionKind,
    shift: float,
    reach: float | None,
    size: int,
    scatter: float | None,
    least: float | None,
    limit: float,
    notes: tuple[str, ...],
) -> Decision:
    return Decision(
        kind=kind,
        ratio=math.exp(shift),
        interval=None if reach is None else (math.exp(shift - reach), math.exp(shift + reach)),
        n=size,
        s=scatter,
        s0=None,
        smallest_detectable=least,
        blocks_needed=0 if kind != "INCONCLUSIVE" else None,
        method=METHOD,
        limit=limit,
        notes=(*notes, f"of {size} prompts like these; no claim about other prompts"),
    )
