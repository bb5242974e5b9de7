"""Phases and causes of death from real logs, and from several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokgate.config.gate import PhaseFloors
from tokgate.server.deaths import cause
from tokgate.server.logtail import LogTail, last_lines
from tokgate.server.oddity import odd_captures
from tokgate.server.timeline import Capture, Timeline, floor_s, label, limit_s
from tokgate.sglang.log import LogReader

SAMPLES = Path(__file__).parents[1] / "sglang" / "samples"
EAGLE3 = [
    "spawn",
    "weights",
    "kv_cache",
    "draft_weights",
    "draft_kv_cache",
    "capture:target-verify",
    "setup",
    "capture:draft-decode",
    "setup",
    "capture:draft-extend",
    "setup",
    "warmup",
]


def follow(text: bytes) -> Timeline:
    timeline, reader = Timeline(0.0), LogReader()
    for second, line in enumerate(text.splitlines(keepends=True)):
        for event in reader.feed(line):
            timeline.take(event, float(second))
    return timeline


def phases(timeline: Timeline) -> list[str]:
    return [phase.name for phase in timeline.finish(1e6)]


@pytest.mark.parametrize(
    ("log", "names", "kinds"),
    [
        (
            "0.5.15.post1/eagle3-graphs-with-suspend.log",
            EAGLE3,
            ["target-verify", "draft-decode", "draft-extend"],
        ),
        (
            "0.5.13.post1/eagle3-graphs.log",
            [*EAGLE3[:3], "capture:target-verify", "setup", "draft_weights", "draft_kv_cache", *EAGLE3[7:]],
            ["target-verify", "draft-decode", "draft-extend"],
        ),
        (
            "0.5.13.post1/baseline-graphs.log",
            ["spawn", "weights", "kv_cache", "capture:target-decode", "setup", "warmup"],
            ["target-decode"],
        ),
        ("0.5.15.post1/eagle3-eager.log", [*EAGLE3[:5], "warmup"], []),
        ("0.5.23-cpu/baseline.log", ["spawn", "weights", "kv_cache", "warmup"], []),
        ("0.5.23-cpu/baseline-tp2.log", ["spawn", "weights", "kv_cache", "warmup"], []),
    ],
)
def test_real_start_ups(log: str, names: list[str], kinds: list[str]) -> None:
    timeline = follow((SAMPLES / log).read_bytes())
    assert timeline.is_ready
    assert [capture.kind for capture in timeline.captures] == kinds
    assert all(c.seconds and c.available_gb for c in timeline.captures)
    assert odd_captures(timeline.captures) == []
    assert phases(timeline) == names


def test_a_real_death_in_start_up() -> None:
    log = SAMPLES / "0.5.15.post1" / "died-after-capture-missing-module.log"
    timeline = follow(log.read_bytes())
    assert not timeline.is_ready and timeline.phase == "setup"
    found = cause(log)
    assert found.line == "ModuleNotFoundError: No module named 'deep_gemm'"
    assert found.quoted[0].startswith("Scheduler hit an exception")
    assert found.quoted[-1] == found.line and len(found.quoted) <= 12


@pytest.mark.parametrize(
    "log", sorted(SAMPLES.glob("*/*.log")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_benign_lines_are_never_a_cause(log: Path) -> None:
    if "died" not in log.name:
        assert cause(log).line == "" and cause(log).quoted == ()


def _line(rank: int, text: str) -> str:
    return f"[2026-11-29 12:00:00 TP{rank}] {text}\n"


def _begin(kind: str) -> str:
    return f"Capture {kind} CUDA graph begin. backend=full, bs=[1, 2], avail mem=73.95 GB"


def _end(kind: str, seconds: float) -> str:
    return f"Capture {kind} CUDA graph end. elapsed={seconds} s, mem usage=0.49 GB, avail mem=6.98 GB."


def test_a_capture_lasts_until_its_last_rank() -> None:
    text = "".join(_line(rank, _begin("target verify")) for rank in range(4))
    text += "".join(_line(rank, _end("target verify", 1.4)) for rank in range(3))
    timeline = follow(text.encode())
    assert timeline.phase == "capture:target-verify"
    assert timeline.open_ranks("target-verify") == ["TP3"]
    assert timeline.ended_ranks("target-verify") == ["TP0", "TP1", "TP2"]
    assert odd_captures(timeline.captures) == ["TP3 began target-verify graph capture and did not end it"]


def test_ranks_that_lag_do_not_turn_the_clock_back() -> None:
    text = _line(1, "Load weight begin. avail mem=83.38 GB")
    text += _line(1, "Load weight end. elapsed=1.0 s, type=Llama, avail mem=80.0 GB, mem usage=3.0 GB.")
    text += _line(0, "Load weight begin. avail mem=83.38 GB")
    timeline = follow(text.encode())
    assert timeline.phase == "kv_cache"


def test_odd_ranks() -> None:
    even = [Capture("draft-extend", f"TP{rank}", 1.40 + rank / 100, 0.49, 6.98) for rank in range(8)]
    assert odd_captures(even) == []
    slow = [*even[:7], Capture("draft-extend", "TP7", 4.2, 0.49, 6.98)]
    assert odd_captures(slow) == ["TP7 took 4.2 s for draft-extend graph capture, median 1.44 s"]
    # From 0.5.12 on only rank 0 logs the draft's captures.
    verify = [Capture("target-verify", f"TP{rank}", 2.0) for rank in range(4)]
    # Ranks that waited for each other took equally long; memory tells.
    heavy = [Capture("target-verify", f"TP{n}", 1.4, 0.18 if n == 2 else 0.06) for n in range(4)]
    assert odd_captures(heavy) == ["TP2 took 0.18 GB for target-verify graph capture, median 0.06 GB"]
    assert odd_captures([c for c in heavy if c.rank != "TP2"]) == []
    assert odd_captures([*verify, Capture("draft-extend", "TP0", 1.4)]) == []
    assert odd_captures([*verify, *even[:3]]) == ["TP3 has no draft-extend graph capture in the log"]


def test_limits() -> None:
    floors = PhaseFloors(capture_s=60)
    assert limit_s("capture:draft-extend", floors, 4, {"capture:draft-extend": 3}) == 60
    assert limit_s("capture:draft-extend", floors, 4, {"capture:draft-extend": 30}) == 120
    for phase in (
        "spawn",
        "imports",
        "weights",
        "draft_weights",
        "kv_cache",
        "setup",
        "warmup",
        "first_token",
    ):
        assert floor_s(phase, floors) > 0 and label(phase)
    assert label("capture:draft-extend") == "draft-extend graph capture"


def test_tail_counts_everything_but_access_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    tail = LogTail(path)
    with path.open("ab", buffering=0) as log:
        assert tail.read() == b"" and tail.fresh_bytes == 0
        log.write(b"Load")
        assert tail.read() == b"Load" and tail.fresh_bytes == 4
        log.write(b" weight\n")
        tail.read()
        assert tail.fresh_bytes == 12 and tail.last_line == "Load weight"
        log.write(b'[2026-11-29 12:00:00] INFO:     127.0.0.1:53442 - "GET /health HTTP/1.1" 503\n')
        tail.read()
        assert tail.fresh_bytes == 12 and tail.last_line == "Load weight"
        log.write(b"Capturing: 1/8\rCapturing: 2/8")
        tail.read()
        assert tail.fresh_bytes == 41 and tail.last_line == "Capturing: 2/8"
    tail.close()
    assert last_lines(path, 1) == ["Capturing: 2/8"]
    assert last_lines(tmp_path / "none", 1) == []
