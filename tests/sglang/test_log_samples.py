"""The real logs of the samples, read whole: what each says, and what none of them says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tokgate.sglang import log_events as ev
from tokgate.sglang.log import LogReader, is_fatal, phase_of, read_events

SAMPLES = Path(__file__).parent / "samples"
LOGS = sorted(path.relative_to(SAMPLES).as_posix() for path in SAMPLES.glob("*/*.log"))


def events_of(name: str) -> list[ev.Event]:
    return list(read_events([(SAMPLES / name).read_bytes()]))


def only(events: list[ev.Event], kind: type[ev.Event]) -> list[ev.Event]:
    return [event for event in events if isinstance(event, kind)]


def captures(name: str) -> list[tuple[str, float | None, float | None, float | None]]:
    return [
        (event.kind, event.seconds, event.used_gb, event.available_gb)
        for event in events_of(name)
        if isinstance(event, ev.CaptureEnd)
    ]


def test_every_log_is_there() -> None:
    assert len(LOGS) == 17


@pytest.mark.parametrize("name", [log for log in LOGS if "died" not in log])
def test_a_healthy_server_has_no_fatal_line_of_its_own(name: str) -> None:
    events = events_of(name)
    assert [
        event for event in events if is_fatal(event) and not getattr(event, "after_shutdown", False)
    ] == []
    assert only(events, ev.ExceptionSeen) == []
    assert only(events, ev.Suspect) == []
    assert len(only(events, ev.Ready)) == 1


@pytest.mark.parametrize("name", LOGS)
def test_every_statistics_line_is_read(name: str) -> None:
    raw = (SAMPLES / name).read_bytes()
    events = events_of(name)
    assert len(only(events, ev.DecodeBatch)) == raw.count(b"] Decode batch")
    assert len(only(events, ev.PrefillBatch)) == raw.count(b"] Prefill batch")
    assert len(only(events, ev.ServerArgs)) == raw.count(b"] server_args=")
    assert len(only(events, ev.WeightsEnd)) == raw.count(b"] Load weight end")
    assert len(only(events, ev.KvCache)) == raw.count(b"] KV Cache is allocated")
    assert len(only(events, ev.CaptureEnd)) == raw.lower().count(b"graph end.")
    assert all(event.time is not None for event in only(events, ev.DecodeBatch))


def test_dozens_of_import_errors_are_benign() -> None:
    name = "0.5.15.post1/baseline-many-ignored-import-errors.log"
    events = events_of(name)
    said = (SAMPLES / name).read_bytes().lower().count(b"import error")
    benign = [event for event in events if isinstance(event, ev.Benign)]
    assert Counter(event.reason for event in benign)["model file that is not served"] == said
    assert sum("import error" in event.text.lower() for event in benign) == said == 34
    assert only(events, ev.Fatal) == []


def test_a_dying_scheduler_is_quoted_whole() -> None:
    events = events_of("0.5.15.post1/died-after-capture-missing-module.log")
    fatal = [event for event in events if isinstance(event, ev.Fatal)]
    assert len(fatal) == 2
    assert fatal[0].summary == "ModuleNotFoundError: No module named 'deep_gemm'"
    assert fatal[0].lines[0].startswith("Scheduler hit an exception: Traceback")
    assert len(fatal[0].lines) == 19
    assert fatal[1].summary.startswith("Received sigquit")
    assert not any(event.after_shutdown for event in fatal)
    assert [event.kind for event in events if isinstance(event, ev.CaptureEnd)] == [
        "target-verify",
        "draft-decode",
    ]


def test_captures_of_the_older_era() -> None:
    assert captures("0.5.13.post1/baseline-graphs.log") == [("target-decode", 28.5, 0.04, 83.34)]
    assert captures("0.5.13.post1/eagle3-graphs.log") == [
        ("target-verify", 5.1, 0.06, 83.32),
        ("draft-decode", 15.54, -0.04, 69.6),
        ("draft-extend", 3.08, 0.08, 69.53),
    ]
    ends = only(events_of("0.5.13.post1/eagle3-graphs.log"), ev.CaptureEnd)
    assert ends[0].sizes == (1, 2, 3, 4, 5, 6, 7, 8)  # type: ignore[attr-defined]
    assert ends[1].sizes is None  # type: ignore[attr-defined]


def test_captures_of_the_newer_era() -> None:
    assert captures("0.5.15.post1/eagle3-graphs-with-suspend.log") == [
        ("target-verify", 35.3, 0.06, 73.99),
        ("draft-decode", 17.97, 0.04, 73.95),
        ("draft-extend", 3.47, 0.08, 73.87),
    ]
    assert [kind for kind, *_ in captures("0.5.15.post1/baseline-many-ignored-import-errors.log")] == [
        "target-prefill",
        "target-decode",
    ]
    assert captures("0.5.15.post1/eagle3-eager.log") == []
    assert captures("0.5.23-cpu/eagle3.log") == []


def test_statistics_of_both_eras_and_the_cpu() -> None:
    def lines(name: str) -> list[ev.DecodeBatch]:
        return [event for event in events_of(name) if isinstance(event, ev.DecodeBatch)]

    first = lines("0.5.13.post1/eagle3-graphs.log")[1]
    assert (first.running, first.tokens, first.accept_length, first.gen_tok_s) == (1, 167, 3.1, 842.97)
    assert (first.graph, first.graph_device, first.queue) == (True, "cuda", 0)
    assert {line.accept_length for line in lines("0.5.15.post1/baseline-graphs.log")} == {None}
    assert {line.graph for line in lines("0.5.15.post1/eagle3-eager.log")} == {False}
    cpu = lines("0.5.23-cpu/eagle3.log")
    assert {(line.graph, line.graph_device, line.accept_length) for line in cpu} == {(False, "cpu", 1.0)}
    wrong = lines("0.5.15.post1/eagle-flag-with-eagle3-draft.log")
    assert {line.accept_length for line in wrong} == {1.0}


def test_server_args_of_both_forms() -> None:
    call = only(events_of("0.5.15.post1/eagle3-graphs-attention-decode.log"), ev.ServerArgs)[0]
    assert isinstance(call, ev.ServerArgs)
    assert call.values["speculative_attention_mode"] == "decode"
    assert call.values["speculative_algorithm"] == "EAGLE3"
    assert call.values["max_running_requests"] == 8
    literal = only(events_of("0.5.23-cpu/eagle3.log"), ev.ServerArgs)[0]
    assert isinstance(literal, ev.ServerArgs)
    assert literal.values["max_running_requests"] == 48
    assert len(call.values) > 300 and len(literal.values) > 300


def test_silent_overrides_are_hints() -> None:
    hints = [event for event in events_of("0.5.23-cpu/eagle3.log") if isinstance(event, ev.Hint)]
    assert {"max_running_requests", "disable_overlap_schedule", "attention_backend"} <= {h.key for h in hints}
    assert any(hint.text.startswith("Max running requests is reset to 48") for hint in hints)


def test_a_suspended_scheduler_is_two_health_failures_and_a_shutdown() -> None:
    events = events_of("0.5.15.post1/eagle3-graphs-with-suspend.log")
    assert [event.seconds for event in events if isinstance(event, ev.HealthFailure)] == [20.0, 20.0]
    fatal = [event for event in events if isinstance(event, ev.Fatal)]
    assert fatal and all(event.after_shutdown for event in fatal)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "0.5.13.post1/eagle3-graphs.log",
            "imports weights kv_cache capture:target-verify@TP0 warmup imports weights kv_cache "
            "capture:draft-decode@TP0 warmup capture:draft-extend@TP0 warmup ready",
        ),
        (
            "0.5.15.post1/eagle3-graphs-with-suspend.log",
            "imports weights kv_cache imports weights kv_cache capture:target-verify@TP0 warmup "
            "capture:draft-decode@TP0 warmup capture:draft-extend@TP0 warmup ready",
        ),
        ("0.5.15.post1/baseline-eager.log", "imports weights kv_cache warmup ready"),
        (
            "0.5.15.post1/died-after-capture-missing-module.log",
            "imports weights kv_cache imports weights kv_cache capture:target-verify@TP0 warmup "
            "capture:draft-decode@TP0 warmup",
        ),
        ("0.5.23-cpu/baseline.log", "imports weights kv_cache warmup ready"),
    ],
)
def test_phases(name: str, expected: str) -> None:
    phases: list[str] = []
    for event in events_of(name):
        phase = phase_of(event)
        if phase is not None and phases[-1:] != [phase]:
            phases.append(phase)
    assert phases == expected.split()


@pytest.mark.parametrize("name", LOGS)
def test_the_unfinished_last_line_waits_for_close(name: str) -> None:
    raw = (SAMPLES / name).read_bytes().rstrip(b"\n")
    reader = LogReader()
    before = reader.feed(raw)
    after = reader.feed(b"\n") + reader.close()
    assert before + after == events_of(name)
