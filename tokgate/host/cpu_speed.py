"""How quick a CPU is: fixed arithmetic on it, and what the kernel counts of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tokgate.host import proc

LOOPS = 3_000
"""Of the fixed arithmetic: about 0.1 ms of a current CPU."""
TIMES = 3
"""The quickest counts, so that an interrupt does not."""


def arithmetic() -> tuple[float, float]:
    """CPU time and wall time of the fixed arithmetic here and now, ms."""
    cpu, wall = [], []
    for _ in range(TIMES):
        began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
        total = 0
        for number in range(LOOPS):
            total += number
        cpu.append(time.thread_time_ns() - began_cpu)
        wall.append(time.perf_counter_ns() - began)
    return min(cpu) / 1e6, min(wall) / 1e6


@contextmanager
def at_once() -> Iterator[None]:
    """This thread runs as soon as it may, before what else its CPU has to do, where the host allows that.

    Without it the canary waits for the end of a slice, and the thread that it waits for may be moved away.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def on_cpu(cpu: int, home: set[int]) -> Iterator[None]:
    """This thread on a CPU, and afterwards back on its own.

    Raises:
        OSError: this process may not run there.
    """
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, home)


def cpu_of(pid: int) -> int | None:
    """The CPU on which a process's main thread runs, or ran last."""
    text = proc.text(pid, "stat")
    try:
        return int((text or "").rpartition(")")[2].split()[36])
    except (IndexError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Ticks:
    """Of one CPU: those that the hypervisor gave to others, and all."""

    stolen: int
    all: int

    def __add__(self, other: Ticks) -> Ticks:
        return Ticks(self.stolen + other.stolen, self.all + other.all)

    def __sub__(self, other: Ticks) -> Ticks:
        return Ticks(self.stolen - other.stolen, self.all - other.all)


def cpu_ticks() -> dict[int, Ticks]:
    """Since boot, by CPU; empty where the host does not tell."""
    found = {}
    try:
        for line in (proc.PROC / "stat").read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                counts = [int(field) for field in fields[:8]]
                found[int(name[3:])] = Ticks(counts[7], sum(counts))
    except (OSError, IndexError, ValueError):
        return {}
    return found


def scan(home: set[int], work: Callable[[], tuple[float, float]] = arithmetic) -> dict[int, float]:
    """CPU time of the fixed work on every CPU of this process, ms; 0.4 ms each."""
    found = {}
    for cpu in sorted(home):
        with contextlib.suppress(OSError), on_cpu(cpu, home):
            found[cpu] = work()[0]
    return found
