"""The canary names a slow CPU under a scheduler, and none where the CPU is as quick as the others."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tokgate.host import proc
from tokgate.host.canary import (
    ENOUGH_LOOKS,
    Canary,
    Looks,
    Ticks,
    arithmetic,
    at_once,
    cpu_of,
    cpu_ticks,
    on_cpu,
    scan,
)

CPUS = sorted(os.sched_getaffinity(0))


@contextmanager
def scheduler(cpu: int) -> Iterator[int]:
    """A process that is busy on one CPU, under the title of SGLang's schedulers."""
    loop = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nprint(flush=True)\nwhile True: pass"
    process = subprocess.Popen(
        ["sglang::scheduler_TP0", "-S", "-c", loop], executable=sys.executable, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def until_it_has_looked(canary: Canary) -> None:
    """Until it has made more looks than are needed, however seldom a busy machine lets it.

    It sleeps before each look, and hardly else: looks are told by how often it gave up its CPU.
    """
    assert canary._process is not None
    status = Path(f"/proc/{canary._process.pid}/status")

    def slept() -> int:
        return int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    before, until = slept(), time.monotonic() + 60
    while slept() - before < 2 * ENOUGH_LOOKS:
        assert time.monotonic() < until, slept() - before
        time.sleep(0.02)


def slow_on(cpu: int | None, factor: float) -> Callable[[], tuple[float, float]]:
    """Work that takes longer on one CPU."""

    def work() -> tuple[float, float]:
        ms = 0.1 * (factor if os.sched_getaffinity(0) == {cpu} else 1.0)
        return ms, ms

    return work


def looked(looks: Looks, pids: list[int], busy: list[float | None]) -> dict[str, float]:
    looks.begin()
    for value in busy:
        looks.look(pids, value)
    return looks.end()


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU: none to tell it from")
def test_a_slow_cpu_under_the_scheduler_is_named_however_long_it_is_slow() -> None:
    looks = Looks(slow_on(CPUS[-1], 1.5))
    with scheduler(CPUS[-1]) as pid:
        for _ in range(5):
            found = looked(looks, [pid], [72.0] * 10)
            assert found["scheduler_cpu_slowdown"] == pytest.approx(1.5)
    assert found["gpu_busy_share"] == pytest.approx(0.72)


def test_a_slow_cpu_elsewhere_is_not() -> None:
    other = CPUS[0] if len(CPUS) > 1 else None
    looks = Looks(slow_on(other, 1.5))
    with scheduler(CPUS[-1]) as pid:
        found = looked(looks, [pid], [99.0] * 10)
        assert (found["scheduler_cpu_slowdown"], found["gpu_busy_share"]) == (1.0, 0.99)


def test_an_episode_that_begins_in_a_run_counts_by_its_part_of_the_run() -> None:
    values = iter([0.1] * len(CPUS) + [0.1] * 5 + [0.16] * 5)
    looks = Looks(lambda: (next(values), 0.0))
    with scheduler(CPUS[-1]) as pid:
        assert looked(looks, [pid], [None] * 10)["scheduler_cpu_slowdown"] == pytest.approx(1.3)


def test_the_first_half_of_a_run_says_nothing_of_the_gpu() -> None:
    assert looked(Looks(), [], [0, 0, 0, 40, 98, 97, 99, 98]) == {"gpu_busy_share": 0.98}


def test_what_is_stolen_from_the_cpu_under_the_scheduler_counts_and_no_other() -> None:
    mine, other = CPUS[-1], CPUS[0] if len(CPUS) > 1 else -1
    told = iter({mine: Ticks(3 * n, 100 * n), other: Ticks(50 * n, 100 * n)} for n in range(20))
    looks = Looks(lambda: (0.1, 0.1), lambda: next(told))
    with scheduler(mine) as pid:
        assert looked(looks, [pid], [None] * 5)["scheduler_steal_share"] == pytest.approx(0.03)
    here = cpu_ticks()
    assert set(CPUS) <= set(here) and all(0 <= t.stolen <= t.all for t in here.values())
    assert "scheduler_steal_share" not in looked(Looks(ticks=dict), [os.getpid()], [None] * 5)


def test_too_few_looks_say_nothing() -> None:
    with scheduler(CPUS[-1]) as pid:
        found = looked(Looks(), [pid], [None] * (ENOUGH_LOOKS - 1))
        assert "scheduler_cpu_slowdown" not in found
        assert looked(Looks(), [], [None] * 10) == {}


def test_the_process_looks_where_the_scheduler_runs() -> None:
    with scheduler(CPUS[-1]) as pid, Canary() as canary:
        assert cpu_of(pid) == CPUS[-1]
        for _ in range(2):
            with canary.watch([pid], []) as found:
                assert found == {}
                until_it_has_looked(canary)
            # Of this machine, whatever it does: a figure, and no GPU.
            assert set(found) == {"scheduler_cpu_slowdown", "scheduler_steal_share"}
            assert 0.5 < found["scheduler_cpu_slowdown"] < 20 and 0 <= found["scheduler_steal_share"] <= 1
        with canary.watch([pid], []) as found:
            pass
        assert found == {}, "a run too short to be looked at"


def test_a_scheduler_that_is_gone_says_nothing() -> None:
    with scheduler(CPUS[-1]) as pid:
        pass
    with Canary() as canary, canary.watch([pid], []) as found:
        time.sleep(0.5)
    assert found == {} and cpu_of(pid) is None


def test_a_canary_that_died_holds_nothing_up() -> None:
    canary = Canary()
    assert canary._process is not None
    canary._process.kill()
    canary._process.wait()
    began = time.monotonic()
    with canary.watch([os.getpid()], []) as found:
        pass
    assert found == {} and time.monotonic() - began < 1.5
    with canary.watch([os.getpid()], []) as found:
        pass
    assert found == {}
    canary.close()


def test_it_ends_when_its_input_does() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tokgate.host.canary"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    out, _ = process.communicate(b'{"pids": [], "gpus": []}\n{}\n', timeout=30)
    assert (process.returncode, out) == (0, b"{}\n{}\n")


def test_the_work_is_done_where_it_should_be_and_nothing_is_left_behind() -> None:
    home = os.sched_getaffinity(0)
    assert set(scan(home)) == home
    with at_once(), on_cpu(CPUS[-1], home):
        assert os.sched_getaffinity(0) == {CPUS[-1]}
        cpu, wall = arithmetic()
    assert 0 < cpu < 50 and wall > 0
    assert os.sched_getaffinity(0) == home and os.sched_getscheduler(0) == os.SCHED_OTHER
    own = proc.read(os.getpid())
    assert own is not None and cpu_of(own.pid) in home


@pytest.mark.parametrize("answer", ["", '{"scheduler_cpu_slo'], ids=["none", "half"])
def test_a_canary_that_was_killed_tells_nothing_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """What it would have told is absent then, which the gate names as not watched."""
    dying = tmp_path / "python"
    dying.write_text(f"#!/bin/sh\necho '{{}}'\nread -r command\nprintf '%s' '{answer}'\n")
    dying.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dying))
    with Canary() as canary:
        with canary.watch([os.getpid()], []) as found:
            pass
        assert found == {}
        with canary.watch([os.getpid()], []) as again:
            pass
        assert again == {}
