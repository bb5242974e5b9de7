"""Contention counters: planted contention is seen, its absence too."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tokgate.host import contention, proc
from tokgate.host.gpu import Nvml

BUSY = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(flush=True)
while True: pass
"""


def test_waiting_for_a_cpu_is_seen() -> None:
    """Two busy processes on one CPU wait for each other about half of the time."""
    rivals = [subprocess.Popen([sys.executable, "-S", "-c", BUSY], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for rival in rivals:
            assert rival.stdout is not None
            rival.stdout.readline()
        began = time.monotonic()
        before = contention.snapshot([rivals[0].pid])
        slept = time.monotonic()
        time.sleep(1.0)
        woke = time.monotonic()
        figures = contention.difference(before, contention.snapshot([rivals[0].pid]))
        ended = time.monotonic()
    finally:
        for rival in rivals:
            rival.kill()
            rival.communicate()
    assert woke - slept <= figures["interval_s"] <= ended - began
    assert figures["scheduler_run_delay_s"] > 0.2
    assert figures["engine_run_delay_s"] >= figures["scheduler_run_delay_s"]


def test_a_sleeping_process_waits_for_nothing() -> None:
    sleeper = subprocess.Popen(
        [sys.executable, "-S", "-c", "print(flush=True); input()"], stdin=-1, stdout=-1
    )
    try:
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
        # Told before it sleeps: until then it may well have to wait.
        until = time.monotonic() + 20
        while (found := proc.read(sleeper.pid)) is None or found.state != "S":
            assert time.monotonic() < until
            time.sleep(0.01)
        before = contention.snapshot([sleeper.pid])
        time.sleep(0.3)
        figures = contention.difference(before, contention.snapshot([sleeper.pid]))
    finally:
        sleeper.communicate(b"\n")
    assert figures["scheduler_run_delay_s"] < 0.05
    assert "foreign_gpu_processes" not in figures and "gpu_power_throttle_s" not in figures


def test_gone_processes_leave_no_figure() -> None:
    before = contention.snapshot([])
    figures = contention.difference(before, contention.snapshot([]))
    assert "scheduler_run_delay_s" not in figures
    assert "load_1m" in figures


def test_steal_is_a_share_of_the_interval() -> None:
    before = contention.snapshot([])
    after = replace(before, at_s=before.at_s + 10, steal_s=(before.steal_s or 0) + 4)
    figures = contention.difference(replace(before, steal_s=before.steal_s or 0), after)
    assert figures["steal_s"] == pytest.approx(4 / (contention.os.cpu_count() or 1))
    assert "steal_s" not in contention.difference(replace(before, steal_s=None), after)


def test_what_was_stolen_counts_against_what_was_wanted() -> None:
    """One busy CPU of sixteen that loses a quarter of its time: an average over all hides it."""
    before = replace(contention.snapshot([]), steal_s=0.0, cpu_used_s=100.0)
    after = replace(before, at_s=before.at_s + 2, steal_s=0.5, cpu_used_s=101.5)
    assert contention.difference(before, after)["stolen_share"] == pytest.approx(0.25)
    idle = replace(after, steal_s=0.0, cpu_used_s=100.0)
    assert "stolen_share" not in contention.difference(before, idle)
    assert "stolen_share" not in contention.difference(replace(before, cpu_used_s=None), after)


def test_servers_of_our_own_are_not_foreign(nvml: Callable[..., Nvml]) -> None:
    own, other = contention.os.getpid(), contention.os.getppid()
    both = nvml({"processes": [(own, 100), (other, 50)]})
    assert contention.snapshot([own], both, [0]).foreign == {0: 1}
    assert contention.snapshot([own], both, [0], beside=[other]).foreign == {0: 0}


def test_gpu_throttle_and_foreign_processes(nvml: Callable[..., Nvml]) -> None:
    own = contention.os.getpid()
    quiet = nvml({"processes": [(own, 100)], "violation_ns": (1_000_000_000, 0)})
    busy = nvml({"processes": [(own, 100), (1, 50)], "violation_ns": (1_500_000_000, 0)})
    figures = contention.difference(
        contention.snapshot([own], quiet, [0]), contention.snapshot([own], busy, [0])
    )
    assert figures["gpu_power_throttle_s"] == pytest.approx(0.5)
    assert figures["gpu_thermal_throttle_s"] == 0
    assert figures["foreign_gpu_processes"] == 1


def test_pids_of_another_namespace_cannot_be_judged(nvml: Callable[..., Nvml]) -> None:
    hidden = nvml({"processes": [(4_000_000, 100)]})
    assert contention.foreign_processes(hidden, [0], {contention.os.getpid()}) is None
    assert contention.foreign_processes(nvml({}), [0], set()) == {0: 0}
    assert contention.foreign_processes(nvml({"processes": None}), [0], set()) is None
