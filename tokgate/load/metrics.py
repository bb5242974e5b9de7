"""The metrics of a run. Each is defined here and, for readers, in docs/reference/metrics.md.

Only requests with outcome ``ok`` or ``short`` enter; what has no meaning for a run is left out of the
result, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tokgate.load.recording import Floats, Recording
from tokgate.load.sample import Request

PEAK_WINDOW_S = 1.0
ANSWERED = ("ok", "short")


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level; a request meets it when it is within every limit that is set.

    Attributes:
        ttft_s, tpot_ms, e2e_s: upper limits.
    """

    ttft_s: float | None = None
    tpot_ms: float | None = None
    e2e_s: float | None = None


def metrics(recording: Recording, slots: int, slo: Slo | None = None) -> tuple[dict[str, float], float]:
    """All metrics of a run and its duration.

    Args:
        recording: the run.
        slots: concurrency of a closed loop, 0 for an open loop.
        slo: also report goodput under it.

    Returns:
        name -> value, and seconds from the first request sent to the last token received (0 with none).
    """
    requests = recording.requests
    answered = [i for i, r in enumerate(requests) if r.outcome in ANSWERED and r.first_token_s is not None]
    if not answered:
        return {}, 0.0
    good = [requests[i] for i in answered]
    first_s = np.array([r.first_token_s for r in good], np.float64)
    last_s = np.array([r.last_token_s for r in good], np.float64)
    intended_s = np.array([r.intended_s for r in good])
    tokens = np.array([r.completion_tokens or 0 for r in good], np.float64)
    began_s = min(r.sent_s for r in requests if r.sent_s is not None)
    duration_s = float(last_s.max() - began_s)
    found: dict[str, float] = {
        "request_per_s": len(good) / duration_s,
        "output_tok_s": tokens.sum() / duration_s,
    }
    _spread(found, "ttft_s", first_s - intended_s)
    _spread(found, "e2e_s", last_s - intended_s)

    inside = np.isin(recording.timeline.owner, answered)
    owner, t_s = recording.timeline.owner[inside], recording.timeline.t_s[inside]
    added = recording.timeline.added[inside]
    # An event that a later one of its read dates has no date of its own; a tap dates them all.
    dated = np.full(len(t_s), True) if recording.drops is not None else ~recording.timeline.merged[inside]
    known = (owner[1:] == owner[:-1]) & dated[1:] & dated[:-1]
    gaps_s = np.diff(t_s)[known]
    if len(gaps_s):
        _spread(found, "step_ms", gaps_s * 1e3)
        found["step_ms_mean"] = float(gaps_s.mean() * 1e3)
    decode_s = last_s - first_s
    if recording.counted:
        decoded = tokens - np.array([r.first_tokens or 0 for r in good])
        steps = sum(r.steps - 1 for r in good)
        if steps > 0:
            found["tokens_per_step"] = float(decoded.sum() / steps)
        if decoded.sum() > 0 and decode_s.sum() > 0:
            found["tpot_ms"] = float(decode_s.sum() / decoded.sum() * 1e3)
            found["decode_tok_s"] = float(decoded.sum() / _covered(first_s, last_s))
            several = decoded > 0
            _spread(found, "tpot_ms", decode_s[several] / decoded[several] * 1e3)
        _windows(found, recording, slots, t_s, added, began_s, duration_s)
        if slo is not None:
            tpot_ms = np.divide(decode_s * 1e3, decoded, out=np.zeros_like(decode_s), where=decoded > 0)
            _goodput(
                found, slo, first_s - intended_s, tpot_ms, last_s - intended_s, duration_s, len(requests)
            )
    _speculation(found, good, decode_s)
    _reported(found, good)
    return found, duration_s


def _spread(found: dict[str, float], name: str, values: Floats) -> None:
    for share in (50, 99):
        found[f"{name}_p{share}"] = float(np.percentile(values, share))


def _covered(starts: Floats, ends: Floats) -> float:
    """Length of the union of intervals, seconds."""
    total, reach = 0.0, -np.inf
    for start, end in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def steady_window(requests: Sequence[Request], slots: int) -> tuple[float, float] | None:
    """The part of the run at full load: (start, end), seconds from the run's start; ``None`` without one.

    Closed loop: from the last first token of the first ``slots`` requests to the first finish that no
    request follows. Open loop: from the first finish to the last request sent.
    """
    done = [r for r in requests if r.first_token_s is not None and r.sent_s is not None]
    if not done:
        return None
    last_sent_s = max(r.sent_s or 0.0 for r in done)
    finishes = [r.last_token_s or 0.0 for r in done]
    if slots:
        opening = sorted(done, key=lambda r: r.sent_s or 0.0)[:slots]
        start = max(r.first_token_s or 0.0 for r in opening)
        end = min(finish for finish in [*finishes, np.inf] if finish > last_sent_s)
    else:
        start, end = min(finishes), last_sent_s
    return (start, float(end)) if start < end < np.inf else None


def _windows(
    found: dict[str, float],
    recording: Recording,
    slots: int,
    t_s: Floats,
    added: np.typing.NDArray[np.int64],
    began_s: float,
    duration_s: float,
) -> None:
    order = np.argsort(t_s, kind="stable")
    t_s, added = t_s[order], added[order]
    window = steady_window([r for r in recording.requests if r.outcome in ANSWERED], slots)
    if window is not None:
        within = (t_s > window[0]) & (t_s <= window[1])
        found["output_tok_s_steady"] = float(added[within].sum() / (window[1] - window[0]))
    # A whole number of windows fills the run, so that at least one of them reaches the mean.
    width_s = duration_s / max(1, int(duration_s / PEAK_WINDOW_S))
    total = np.concatenate([[0], np.cumsum(added)])
    # The window that ends with event i: everything after t_i - width, and the whole-run grid beside it.
    ends = np.concatenate([t_s, began_s + width_s * np.arange(1, round(duration_s / width_s) + 1)])
    upto = total[np.searchsorted(t_s, ends, side="right")]
    before = total[np.searchsorted(t_s, ends - width_s * (1 + 1e-12), side="right")]
    found["peak_tok_s"] = float((upto - before).max() / width_s)


def _goodput(
    found: dict[str, float],
    slo: Slo,
    ttft_s: Floats,
    tpot_ms: Floats,
    e2e_s: Floats,
    duration_s: float,
    sent: int,
) -> None:
    met = np.ones(len(ttft_s), np.bool_)
    for limit, values in ((slo.ttft_s, ttft_s), (slo.tpot_ms, tpot_ms), (slo.e2e_s, e2e_s)):
        if limit is not None:
            met &= values <= limit
    found["goodput_request_per_s"] = float(met.sum() / duration_s)
    found["goodput_share"] = float(met.sum() / sent)


def _speculation(found: dict[str, float], good: Sequence[Request], decode_s: Floats) -> None:
    """Accept length, cycle time and acceptance by position, over requests that report verify passes."""
    told = [i for i, r in enumerate(good) if r.verify_count]
    if not told:
        return
    verifies = sum(good[i].verify_count or 0 for i in told)
    # The first token comes from the prefill, not from a verify pass.
    found["accept_length"] = sum((good[i].completion_tokens or 0) - 1 for i in told) / verifies
    found["cycle_ms"] = float(sum(decode_s[i] for i in told) / verifies * 1e3)
    histograms = [h for i in told if (h := good[i].accept_histogram)]
    passes = sum(map(sum, histograms))
    for position in range(1, max(map(len, histograms), default=0)):
        found[f"accept_share_pos{position}"] = sum(sum(h[position:]) for h in histograms) / passes


def _reported(found: dict[str, float], good: Sequence[Request]) -> None:
    """What the server itself reports, where it does."""
    queue = _told(r.queue_s for r in good)
    if queue:
        _spread(found, "queue_s", np.array(queue))
    prompt = _told(r.prompt_tokens for r in good if r.cached_tokens is not None)
    if prompt and sum(prompt):
        found["cached_share"] = sum(_told(r.cached_tokens for r in good)) / sum(prompt)


def _told(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
