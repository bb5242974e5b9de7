"""Metrics and voids on runs whose figures are known by arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokgate.load.audit import audit, voids
from tokgate.load.metrics import Slo, metrics, steady_window
from tokgate.load.recording import Recording, Timeline
from tokgate.load.sample import Request


def recording(
    streams: list[tuple[float, list[float], list[int]]], lag_s: float = 20e-6, **changes: object
) -> Recording:
    """A run of streams, each (sent_s, times of events, tokens of events)."""
    requests, owner, t_s, added = [], [], [], []
    for index, (sent_s, times, tokens) in enumerate(streams):
        requests.append(
            Request(
                index=index,
                outcome="ok",
                intended_s=sent_s,
                sent_s=sent_s,
                first_token_s=times[0],
                last_token_s=times[-1],
                completion_tokens=sum(tokens),
                first_tokens=tokens[0],
                steps=len(times),
            )
        )
        owner += [index] * len(times)
        t_s += times
        added += tokens
    lags = np.full(len(t_s), lag_s)
    timeline = Timeline(np.array(owner), np.array(t_s), np.array(added), lags, np.zeros(len(t_s), bool))
    ended = np.array([times[-1] + 1e-4 for _, times, _ in streams])
    values = {
        "requests": tuple(requests),
        "ended_s": ended,
        "timeline": timeline,
        "counted": True,
        "stamped": True,
        "reader": ("c", ""),
        "drops": None,
        "unread_bytes": 0,
        "window_s": 10.0,
        "cpu_s": 0.1,
        "peak_mib": 20.0,
        "run_delay_s": 0.01,
        "clock_step_s": 0.0,
        "server_e2e_s": np.full(len(requests), np.nan),
        "stalls": (),
    }
    return Recording(**{**values, **changes})


def steady_stream(sent_s: float, ttft_s: float, step_s: float, tokens: list[int]) -> tuple:
    return sent_s, [sent_s + ttft_s + step_s * i for i in range(len(tokens))], tokens


def judged(run: Recording, slots: int = 1) -> set[str]:
    found, duration_s = metrics(run, slots)
    counts = {r.index: r.completion_tokens or 0 for r in run.requests}
    reasons = voids(
        run, audit(run), found, duration_s, slots=slots, workers=1, asked=counts, prompt_tokens={0: 3}
    )
    assert all(reason.measured > reason.bound or reason.cause == "server_duration" for reason in reasons)
    return {reason.cause for reason in reasons}


def with_request(run: Recording, **changes: object) -> Recording:
    return replace(run, requests=(replace(run.requests[0], **changes), *run.requests[1:]))


def test_founding_case() -> None:
    """Row 5 of the investigation: 12.1 ms a token against 33.0 ms a cycle at accept length 2.0."""
    baseline, _ = metrics(recording([steady_stream(0, 0.1, 0.0121, [1] * 256)]), 1)
    assert baseline["decode_tok_s"] == pytest.approx(82.6, abs=0.05)
    assert baseline["tokens_per_step"] == 1 and "accept_length" not in baseline
    eagle = recording([steady_stream(0, 0.1, 0.033, [1] + [2] * 127)])
    eagle = with_request(eagle, verify_count=127, accept_histogram=(0, 127, 0))
    found, _ = metrics(eagle, 1)
    assert found["decode_tok_s"] == pytest.approx(60.6, abs=0.05)
    assert found["accept_length"] == 2.0 and found["cycle_ms"] == pytest.approx(33.0)
    assert found["step_ms_p50"] == pytest.approx(33.0) and found["tpot_ms"] == pytest.approx(16.5)
    assert (found["accept_share_pos1"], found["accept_share_pos2"]) == (1.0, 0.0)
    assert found["decode_tok_s"] == pytest.approx(found["accept_length"] / found["cycle_ms"] * 1e3)


def test_full_run_has_prefill_inside_and_decode_has_not() -> None:
    streams = [steady_stream(start, 0.5, 0.01, [1] * 51) for start in (0.0, 1.0)]
    found, duration_s = metrics(recording(streams), 1)
    assert duration_s == pytest.approx(2.0)
    assert found["output_tok_s"] == pytest.approx(51.0)
    assert found["decode_tok_s"] == pytest.approx(100.0)
    assert found["ttft_s_p50"] == pytest.approx(0.5) and found["e2e_s_p99"] == pytest.approx(1.0)
    assert found["request_per_s"] == pytest.approx(1.0)


def test_decode_rate_of_streams_side_by_side() -> None:
    together = [steady_stream(0.0, 0.1, 0.01, [1] * 101) for _ in range(4)]
    assert metrics(recording(together), 4)[0]["decode_tok_s"] == pytest.approx(400.0)


def test_steady_window() -> None:
    streams = [
        steady_stream(0.0, 0.1, 0.01, [1] * 91),  # finishes at 1.0
        steady_stream(0.0, 0.3, 0.01, [1] * 101),  # last first token 0.3, finishes at 1.3
        steady_stream(1.0, 0.1, 0.01, [1] * 51),  # sent last, at 1.0; finishes at 1.6
    ]
    run = recording(streams)
    assert steady_window(run.requests, 2) == pytest.approx((0.3, 1.3))
    # 70 + 100 + 21 events in one second.
    assert metrics(run, 2)[0]["output_tok_s_steady"] == pytest.approx(191, abs=1.5)
    # One slot never waits for others, but a window must have a length.
    never = [steady_stream(0.0, 0.1, 0.01, [1] * 5), steady_stream(0.0, 0.5, 0.01, [1] * 5)]
    assert steady_window(recording(never).requests, 2) is None
    assert "output_tok_s_steady" not in metrics(recording(never), 2)[0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 5), st.floats(0.001, 2), st.lists(st.floats(1e-4, 3), max_size=20), st.integers(1, 4)
        ),
        min_size=1,
        max_size=5,
    )
)
def test_the_peak_is_never_below_the_mean(rows: list[tuple[float, float, list[float], int]]) -> None:
    streams = [
        (sent, [float(t) for t in sent + ttft + np.cumsum([0.0, *gaps])], [tokens] * (len(gaps) + 1))
        for sent, ttft, gaps, tokens in rows
    ]
    found, _ = metrics(recording(streams), len(streams))
    assert found["peak_tok_s"] >= found["output_tok_s"] * (1 - 1e-9)


def test_goodput() -> None:
    streams = [
        steady_stream(0.0, ttft, step, [1] * 11) for ttft, step in ((0.1, 0.01), (0.3, 0.01), (0.1, 0.03))
    ]
    found, duration_s = metrics(recording(streams), 3, Slo(ttft_s=0.2, tpot_ms=20))
    assert found["goodput_share"] == pytest.approx(1 / 3)
    assert found["goodput_request_per_s"] == pytest.approx(1 / duration_s)
    assert "goodput_share" not in metrics(recording(streams), 3)[0]


def test_absent_is_absent() -> None:
    run = recording([steady_stream(0, 0.1, 0.01, [1] * 5)], counted=False)
    found, _ = metrics(with_request(run, first_tokens=None), 1)
    assert "output_tok_s" in found and "step_ms_p50" in found
    assert not {"tpot_ms", "tokens_per_step", "decode_tok_s", "queue_s_p50", "cached_share"} & set(found)
    failed = with_request(recording([steady_stream(0, 0.1, 0.01, [1] * 5)]), outcome="stalled")
    assert metrics(failed, 1) == ({}, 0.0)


GOOD = [steady_stream(0, 0.02, 0.01, [1] * 101)]


def test_a_sound_run_is_not_void() -> None:
    assert judged(recording(GOOD)) == set()


def merged(run: Recording, every: int) -> Recording:
    marks = np.zeros(len(run.timeline.t_s), bool)
    marks[10::every] = True
    return replace(run, timeline=replace(run.timeline, merged=marks))


def test_a_gap_whose_ends_are_not_dated_is_left_out() -> None:
    """The client missed a step: two events of each of 64 streams came in one read, the first without a date."""
    streams = [steady_stream(0, 0.02, 0.005, [1] * 101) for _ in range(64)]
    run = recording(streams)
    t_s, marks = run.timeline.t_s.copy(), np.zeros(64 * 101, bool)
    undated = np.arange(64) * 101 + 50
    t_s[undated] = t_s[undated + 1]
    marks[undated] = True
    run = replace(run, timeline=replace(run.timeline, t_s=t_s, merged=marks))
    assert (np.diff(t_s) > 0.0099).sum() >= 64
    found, _ = metrics(run, 64)
    assert found["step_ms_p99"] == pytest.approx(5.0) and found["tpot_ms"] == pytest.approx(5.0)
    # A tap dates every event, whatever the reads were.
    tapped, _ = metrics(replace(run, drops=0), 64)
    assert tapped["step_ms_mean"] == pytest.approx(5.0) and tapped["step_ms_p99"] == pytest.approx(
        5.0, rel=0.9
    )


def unstamped(run: Recording) -> Recording:
    lags = run.timeline.lag_s.copy()
    lags[5:10] = np.nan
    return replace(run, timeline=replace(run.timeline, lag_s=lags))


@pytest.mark.parametrize(
    ("run", "cause"),
    [
        (recording(GOOD, lag_s=1.5e-3), "client_lag"),
        (merged(recording(GOOD), 20), "merged_reads"),
        (unstamped(recording(GOOD)), "unstamped_reads"),
        (recording(GOOD, clock_step_s=2e-4), "clock_step"),
        (recording(GOOD, cpu_s=9.0), "client_cpu"),
        (recording(GOOD, run_delay_s=1.0), "client_run_delay"),
        (recording(GOOD, server_e2e_s=np.array([2.0])), "server_duration"),
        (with_request(recording(GOOD), prompt_tokens=4), "prompt_length"),
        (with_request(recording(GOOD), outcome="early_close"), "failed_requests"),
        (with_request(recording(GOOD), outcome="short"), "short_output"),
        (with_request(recording(GOOD), verify_count=50, accept_histogram=(0, 49, 0)), "accept_counts"),
        (with_request(recording(GOOD), verify_count=50, accept_histogram=(10, 40, 0)), "accept_counts"),
        (recording([*GOOD, steady_stream(1.2, 0.02, 0.01, [1] * 101)]), "idle_between_requests"),
        (recording([*GOOD, steady_stream(0.5, 0.02, 0.01, [1] * 101)]), "tpot_against_tok_s"),
    ],
)
def test_each_void_has_its_cause(run: Recording, cause: str) -> None:
    assert judged(run) == {cause}


def test_histogram_may_hold_drafts_past_the_end() -> None:
    assert judged(with_request(recording(GOOD), verify_count=50, accept_histogram=(0, 49, 1))) == set()


def test_more_tokens_than_asked() -> None:
    run = recording(GOOD)
    found, duration_s = metrics(run, 1)
    reasons = voids(run, audit(run), found, duration_s, slots=1, workers=1, asked={0: 100}, prompt_tokens={})
    assert [reason.cause for reason in reasons] == ["excess_output"]
    assert reasons[0].message == "1 of 1 requests gave more tokens than asked; request 0: 101 tokens of 100"


def test_late_sends_of_an_open_loop() -> None:
    run = with_request(recording(GOOD), intended_s=-0.01)
    assert judged(run, slots=0) == {"send_lag"}


def test_events_that_come_together_may_lag_by_their_reading() -> None:
    """64 streams step at once: read in turn at 10 us each, the last lags 0.64 ms of a 5 ms step."""
    streams = [steady_stream(0, 0.02, 0.005, [1] * 50) for _ in range(64)]
    run = recording(streams)
    lags = 20e-6 + 10e-6 * run.timeline.owner
    run = replace(run, timeline=replace(run.timeline, lag_s=lags))
    assert np.percentile(lags, 99) > 0.1 * 0.005
    assert judged(run, slots=64) == set()
    starved = replace(run, timeline=replace(run.timeline, lag_s=lags + 2e-3))
    assert judged(starved, slots=64) == {"client_lag"}


def test_no_kernel_stamps() -> None:
    found = audit(recording(GOOD, stamped=False))
    assert (found.stamp_tier, found.lag_p99_s, found.unstamped_share) == ("user", None, 1.0)
