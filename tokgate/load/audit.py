"""Can this run be believed? The audit of the client, and the checks of a run against itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tokgate.load.loop import LINGER_S
from tokgate.load.recording import Recording, Timeline
from tokgate.load.sample import Audit, Request, Void

LAG_SHARE = 0.10
LAG_FLOOR_S = 1e-3
MERGED_SHARE = 0.01
UNSTAMPED_SHARE = 0.01
CLOCK_STEP_S = 100e-6
CPU_SHARE = 0.85
RUN_DELAY_SHARE = 0.05
IDLE_SHARE = 0.05
UNREAD_BYTES = 49_152
CONSISTENCY = 0.005


def audit(recording: Recording) -> Audit:
    """The client's own account of the run."""
    timeline = recording.timeline
    reads = ~timeline.merged
    lags = timeline.lag_s[reads]
    stamped = ~np.isnan(lags)
    tapped = recording.drops is not None
    kernel = (recording.stamped or tapped) and bool(stamped.any())
    # A read that ends a group of merged events: its predecessor is marked.
    groups = np.append(False, timeline.merged[:-1])[reads] if len(timeline.merged) else reads
    return Audit(
        reader=recording.reader[0],
        reader_reason=recording.reader[1],
        stamp_tier="tap" if tapped else "kernel" if kernel else "user",
        lag_p99_s=float(np.percentile(lags[stamped], 99)) if kernel else None,
        merged_read_share=float(groups.mean()) if len(groups) else 0.0,
        unstamped_share=float((~stamped).mean()) if kernel else 1.0,
        client_cpu_s=recording.cpu_s,
        client_run_delay_s=recording.run_delay_s,
        clock_step_s=recording.clock_step_s,
        client_peak_mib=recording.peak_mib,
    )


def read_cost_s(timeline: Timeline) -> float:
    """Median time between reads that follow each other without a wait: the cost of one read."""
    users = np.sort((timeline.t_s + timeline.lag_s)[~timeline.merged & ~np.isnan(timeline.lag_s)])
    gaps = np.diff(users)
    close = gaps[gaps < 50e-6]
    return float(np.median(close)) if len(close) else 0.0


def voids(
    recording: Recording,
    found: Audit,
    metrics: Mapping[str, float],
    duration_s: float,
    *,
    slots: int,
    workers: int,
    asked: Mapping[int, int],
    prompt_tokens: Mapping[int, int],
) -> tuple[Void, ...]:
    """Every reason why the run does not count, each with its figures.

    Args:
        recording: the run.
        found: its audit.
        metrics: its metrics.
        duration_s: its duration.
        slots: concurrency of a closed loop, 0 for an open loop.
        workers: number of client processes.
        asked: output tokens asked, by request index.
        prompt_tokens: token ids sent, by request index; empty for texts.
    """
    reasons = list(_requests(recording, asked, prompt_tokens))
    if duration_s > 0:
        reasons += _client(recording, found, metrics, slots, workers)
        reasons += _consistency(recording, metrics, duration_s, slots)
    return tuple(reasons)


def _exceeds(cause: str, measured: float, bound: float, unit: str, what: str) -> Iterator[Void]:
    if measured > bound:
        scale, shown = {"s": (1e3, "ms"), "share": (100, "%")}.get(unit, (1, unit))
        text = f"{what}: {measured * scale:.4g} {shown} (bound {bound * scale:.4g} {shown})"
        yield Void(cause, measured, bound, unit, text)


def _requests(
    recording: Recording, asked: Mapping[int, int], prompt_tokens: Mapping[int, int]
) -> Iterator[Void]:
    total = len(recording.requests)

    def count(cause: str, what: str, chosen: list[Request], example: str) -> Iterator[Void]:
        if chosen:
            text = f"{len(chosen)} of {total} requests {what}; request {chosen[0].index}: {example}"
            yield Void(cause, len(chosen), 0, "requests", text)

    failed = [r for r in recording.requests if r.outcome not in ("ok", "short")]
    yield from count(
        "failed_requests", "failed", failed, f"{failed[0].outcome}: {failed[0].detail}" if failed else ""
    )
    short = [r for r in recording.requests if r.outcome == "short"]
    yield from count("short_output", "gave fewer tokens than asked", short, short[0].detail if short else "")
    good = [r for r in recording.requests if r.outcome == "ok"]
    over = [r for r in good if (r.completion_tokens or 0) > asked[r.index]]
    yield from count(
        "excess_output",
        "gave more tokens than asked",
        over,
        f"{over[0].completion_tokens} tokens of {asked[over[0].index]}" if over else "",
    )
    other = [
        r
        for r in good
        if r.prompt_tokens is not None and r.prompt_tokens != prompt_tokens.get(r.index, r.prompt_tokens)
    ]
    yield from count(
        "prompt_length",
        "had a prompt of another length than was sent",
        other,
        f"{other[0].prompt_tokens} tokens, sent {prompt_tokens[other[0].index]}" if other else "",
    )
    odd = [r for r in good if not _accept_counts_agree(r)]
    yield from count(
        "accept_counts",
        "report speculative counters that contradict each other",
        odd,
        f"{odd[0].completion_tokens} tokens, {odd[0].verify_count} verifies, {odd[0].accept_histogram}"
        if odd
        else "",
    )


def _accept_counts_agree(request: Request) -> bool:
    """tokens - 1 = verifies + accepted drafts, but for drafts accepted past the requested length."""
    histogram, verifies = request.accept_histogram, request.verify_count
    if not histogram or not verifies or request.completion_tokens is None:
        return True
    accepted = sum(i * passes for i, passes in enumerate(histogram))
    surplus = verifies + accepted - (request.completion_tokens - 1)
    return sum(histogram) == verifies and 0 <= surplus < len(histogram)


def _client(
    recording: Recording,
    found: Audit,
    metrics: Mapping[str, float],
    slots: int,
    workers: int,
) -> Iterator[Void]:
    if found.stamp_tier == "tap":
        # The wire is dated whatever this process does; what it can spoil is the load.
        yield from _tap(recording, found, slots)
        yield from _send_lag(recording, metrics, slots)
        return
    step_s = metrics.get("step_ms_p50", 0.0) / 1e3
    if found.lag_p99_s is not None and step_s:
        # Events that arrive together are read one after the other. That delays no kernel stamp, so it is
        # allowed for, up to one step, where reads would begin to merge.
        # Beside that, a client of many streams pauses by itself once it has caught up.
        turn = 1.5 * read_cost_s(recording.timeline)
        together = slots / workers * turn + LINGER_S if slots > 1 else 0.0
        # A late read moves no kernel stamp either; at steps of a millisecond a tenth of one is what any
        # wake-up may take. Up to half a step no reads merge, and merging has a bound of its own.
        floor = min(LAG_FLOOR_S, step_s / 2)
        bound = max(LAG_SHARE * step_s, floor, min(together, step_s))
        yield from _exceeds(
            "client_lag", found.lag_p99_s, bound, "s", "99 % of reads lag behind arrival by up to"
        )
    if found.stamp_tier == "kernel":
        yield from _exceeds(
            "unstamped_reads", found.unstamped_share, UNSTAMPED_SHARE, "share", "reads without a kernel stamp"
        )
    yield from _exceeds(
        "merged_reads", found.merged_read_share, MERGED_SHARE, "share", "reads that held several events"
    )
    yield from _exceeds("clock_step", found.clock_step_s, CLOCK_STEP_S, "s", "clock stepped by")
    yield from _exceeds(
        "client_cpu",
        found.client_cpu_s / recording.window_s / workers,
        CPU_SHARE,
        "share",
        "client used of its CPU",
    )
    if found.client_run_delay_s is not None:
        delay = found.client_run_delay_s / recording.window_s / workers
        yield from _exceeds("client_run_delay", delay, RUN_DELAY_SHARE, "share", "client waited for a CPU")
    yield from _send_lag(recording, metrics, slots)


def _send_lag(recording: Recording, metrics: Mapping[str, float], slots: int) -> Iterator[Void]:
    if slots:
        return
    lag = [r.sent_s - r.intended_s for r in recording.requests if r.sent_s is not None]
    bound = max(1e-3, LAG_SHARE * metrics.get("ttft_s_p50", 0.0))
    yield from _exceeds("send_lag", float(np.percentile(lag, 99)), bound, "s", "requests were sent late by")


def _tap(recording: Recording, found: Audit, slots: int) -> Iterator[Void]:
    yield from _exceeds("tap_drops", recording.drops or 0, 0, "packets", "the tap missed")
    yield from _exceeds(
        "unstamped_reads", found.unstamped_share, UNSTAMPED_SHARE, "share", "events that the tap did not see"
    )
    yield from _exceeds("clock_step", found.clock_step_s, CLOCK_STEP_S, "s", "clock stepped by")
    # A socket that starts with a window of 64 KiB and is not read tells the server to wait.
    yield from _exceeds(
        "closed_window",
        recording.unread_bytes,
        UNREAD_BYTES,
        "bytes",
        "the client read so late that it may have held up the server; unread on one connection",
    )
    yield from _exceeds(
        "slow_to_follow",
        follow_share(recording.requests, slots),
        IDLE_SHARE,
        "share",
        "slots without a request before the last was sent, because the client was late to send the next",
    )


def follow_share(requests: Sequence[Request], slots: int) -> float:
    """Closed loop: time for which slots lay idle between two requests, as a share of all slots' time.

    Args:
        requests: of a run.
        slots: its concurrency; 0 gives 0.
    """
    finishes = sorted(r.last_token_s for r in requests if r.last_token_s is not None)
    sends = sorted(r.sent_s for r in requests if r.sent_s is not None)
    later = sends[slots:]
    if not slots or not later or not finishes:
        return 0.0
    idle_s = sum(max(0.0, sent - done) for sent, done in zip(later, finishes, strict=False))
    return idle_s / (slots * (later[-1] - sends[0]))


def _consistency(
    recording: Recording, metrics: Mapping[str, float], duration_s: float, slots: int
) -> Iterator[Void]:
    requests = recording.requests
    for i, request in enumerate(requests):
        e2e_s, server_s = recording.ended_s[i] - (request.sent_s or 0.0), recording.server_e2e_s[i]
        if request.outcome == "ok" and server_s * (1 - CONSISTENCY) - 1e-3 > e2e_s:
            text = (
                f"request {request.index} took {e2e_s:.4f} s here, {server_s:.4f} s by the server's account"
            )
            yield Void("server_duration", float(server_s), float(e2e_s), "s", text)
            break
    if slots != 1:
        return
    if "tpot_ms" in metrics and "decode_tok_s" in metrics:
        off = abs(metrics["decode_tok_s"] * metrics["tpot_ms"] / 1e3 - 1)
        yield from _exceeds("tpot_against_tok_s", off, CONSISTENCY, "share", "1000/TPOT and tok/s differ by")
    busy_s = sum(
        r.last_token_s - r.sent_s for r in requests if r.last_token_s is not None and r.sent_s is not None
    )
    idle = 1 - busy_s / duration_s
    yield from _exceeds(
        "idle_between_requests", idle, IDLE_SHARE, "share", "time between requests, of the run"
    )
