"""What counts as progress, what the stacks say, how it is worded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tokgate.host import proc, py_spy
from tokgate.server import forensics, stacks, wording
from tokgate.server.progress import MIB, MemberGauges, Progress
from tokgate.server.stacks import odd_rank


def test_progress_is_growth_beyond_the_step() -> None:
    progress = Progress(0.0)
    progress.reading("rss_bytes", 100 * MIB, 1.0)
    assert progress.waited_s(1.0) == 1.0  # the first reading is where growth is counted from
    progress.reading("rss_bytes", 103 * MIB, 2.0)
    assert progress.waited_s(2.0) == 2.0
    progress.reading("rss_bytes", 104 * MIB, 3.0)
    assert progress.waited_s(3.0) == 0.0 and progress.last_gauge == "rss_bytes"


def test_memory_that_only_swings_is_no_progress() -> None:
    progress = Progress(0.0)
    for second in range(1, 10):
        progress.reading("rss_bytes", (100 + 50 * (second % 2)) * MIB, float(second))
    assert progress.waited_s(10.0) == 10.0


def test_polling_threads_do_not_pass_for_progress() -> None:
    """A watchdog that reads 20 kB of /proc a second for two minutes is not loading weights."""
    progress = Progress(0.0)
    for second in range(120):
        progress.reading("read_bytes", 20_000.0 * second, float(second))
    assert progress.waited_s(120.0) == 120.0
    progress.reading("read_bytes", 20_000 * 120 + 16 * MIB, 121.0)
    assert progress.waited_s(121.0) == 0.0


def test_starvation_extends_a_deadline_a_little() -> None:
    progress = Progress(0.0)
    assert not progress.is_over(9.9, 10.0) and progress.is_over(10.0, 10.0)
    progress.starve(2.0)
    assert not progress.is_over(11.9, 10.0) and progress.is_over(12.0, 10.0)
    progress.starve(100.0)
    assert not progress.is_over(13.9, 10.0) and progress.is_over(14.0, 10.0)
    progress.touch("log_bytes", 14.0)
    assert progress.starved_s == 0.0


def test_every_new_log_byte_is_progress() -> None:
    progress = Progress(0.0)
    progress.reading("log_bytes", 0, 1.0)
    assert progress.waited_s(1.0) == 1.0
    progress.reading("log_bytes", 1, 2.0)
    assert progress.waited_s(2.0) == 0.0


def test_gauges_of_real_processes_only_grow() -> None:
    progress, gauges = Progress(0.0), MemberGauges()
    own = proc.read(os.getpid())
    assert own is not None
    gauges.take([own], progress, 1.0)
    gauges.take([], progress, 2.0)
    ballast = bytes(64 * MIB)
    touched = bytearray(ballast)
    gauges.take([own], progress, 3.0)
    assert len(touched) and progress.waited_s(3.0) == 0.0


BARRIER = """Process 1: sglang::scheduler_TP{rank}
Thread 1 (idle): "MainThread"
    wait (barrier.py:33)
    capture (runner.py:198)
    run_{role} (main.py:61)
"""
ELSEWHERE = """Process 1: sglang::scheduler_TP3
Thread 1 (active): "MainThread"
    synchronize (torch/cuda/streams.py:224)
    capture (runner.py:195)
    run_follower (main.py:61)
Thread 2 (idle): "watchdog"
    sleep (watchdog.py:9)
"""


def test_the_rank_for_which_the_others_wait() -> None:
    stacks = {f"TP{r}": BARRIER.format(rank=r, role="leader" if r == 0 else "follower") for r in range(3)}
    assert odd_rank(stacks) is None
    stacks["TP3"] = ELSEWHERE
    odd = odd_rank(stacks)
    assert odd == (
        "TP3 is elsewhere than the other ranks: synchronize (torch/cuda/streams.py:224) < "
        "capture (runner.py:195) < run_follower (main.py:61)"
    )


@pytest.mark.parametrize("count", [1, 2])
def test_no_rank_is_odd_among_two(count: int) -> None:
    stacks = dict(list({"TP0": BARRIER.format(rank=0, role="leader"), "TP3": ELSEWHERE}.items())[:count])
    assert odd_rank(stacks) is None


def test_evidence_without_a_tracer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy, "find", lambda: None)
    own = proc.read(os.getpid())
    assert own is not None
    found = forensics.collect([own], tmp_path / "no.log", tmp_path, "hang-x", "reason")
    assert found.path is not None and "reason" in found.path.read_text()
    assert any(line.startswith("no stacks: py-spy is not installed") for line in found.summary)
    assert found.seconds < 10


def test_one_stack_that_cannot_be_had_is_told_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy host, where the tracer has not answered in time for each."""
    slow = f"{stacks.FAILED}no answer within 3.0 s"
    monkeypatch.setattr(
        stacks, "dump", lambda members, until_s: [BARRIER.format(rank=0, role="leader"), slow]
    )
    own, parent = proc.read(os.getpid()), proc.read(os.getppid())
    assert own is not None and parent is not None
    found = forensics.collect([own, parent], tmp_path / "no.log", tmp_path, "hang-x", "reason")
    told = [line for line in found.summary if line.startswith("stack of ")]
    assert [line.partition(": ")[2] for line in told] == [
        "wait (barrier.py:33) < capture (runner.py:198) < run_leader (main.py:61)",
        "absent, py-spy: no answer within 3.0 s",
    ]
    assert not any(line.startswith("no stacks") for line in found.summary)


def test_evidence_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = forensics.collect([], tmp_path / "no.log", tmp_path / "file" / "folder", "hang-x", "reason")
    assert found.path is None
    assert any("could not be written" in line for line in found.summary)


def test_wording() -> None:
    assert wording.no_progress("draft-extend graph capture", 60.02, 60, 3) == (
        "draft-extend graph capture: no progress for 60 s (limit 60 s, usually 3 s)"
    )
    assert wording.no_progress("spawn", 2.04, 2, None) == "spawn: no progress for 2 s (limit 2 s)"
    assert wording.status(-6) == "killed by SIGABRT" and wording.status(1) == "exit code 1"
    assert wording.status(-99) == "killed by signal 99"
    assert wording.ranks(["TP0", "TP1", "TP2", "TP5"]) == "TP0-TP2, TP5"
    assert wording.ranks(["DP0 TP1", "TP2"]) == "DP0 TP1, TP2"
