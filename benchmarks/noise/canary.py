"""Canaries: fixed work whose CPU time tells how fast a CPU and its memory are at the moment.

Work that takes more CPU time than before means that the CPU itself is slower: its clock, a busy sibling on the
same physical core, its caches. No counter that a virtual machine has shows that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tokgate.host.cpu_speed import arithmetic, on_cpu

BUFFER_MIB = 256
"""Of the memory canary: more than the last-level caches of current servers hold, let alone a share of one."""
LINE_BYTES = 64
PLACES = 2_000
"""Cache lines that one look reads; no line is read again before all the others were."""

PROBE_S = 0.3


class Memory:
    """Reads of cache lines in random order, in no cache: they come from memory."""

    def __init__(self) -> None:
        per_line = LINE_BYTES // 8
        lines = BUFFER_MIB * (1 << 20) // LINE_BYTES
        # Written, so that every page is there; an untouched one would be the kernel's page of zeros.
        self._buffer = np.ones(lines * per_line)
        self._order = np.random.default_rng(1).permutation(lines) * per_line
        self._at = 0

    def read(self) -> float:
        """CPU time of the next reads, ms."""
        if self._at + PLACES > len(self._order):
            self._at = 0
        places = self._order[self._at : self._at + PLACES]
        self._at += PLACES
        began = time.thread_time_ns()
        self._buffer[places].sum()
        return (time.thread_time_ns() - began) / 1e6


def siblings(cpu: int) -> tuple[set[int], bool]:
    """CPUs of the physical core of a CPU, itself included; and whether the host told.

    Where it tells of one alone, its neighbour is taken: a machine that hides its threads may still run two of
    its CPUs on one core.
    """
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        text = path.read_text().strip()
    except OSError:
        return {cpu & ~1, cpu | 1}, False
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    return (found, True) if len(found) > 1 else ({cpu & ~1, cpu | 1}, False)


@contextmanager
def busy(cpu: int) -> Iterator[None]:
    """A busy loop on a CPU."""
    loop = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile True: sum(range(10_000))"
    process = subprocess.Popen([sys.executable, "-S", "-c", loop])
    try:
        # Its interpreter starts; until it has used a tenth of a second it is no neighbour yet.
        until = time.monotonic() + 5
        while time.monotonic() < until and _used_s(process.pid) < 0.1:
            time.sleep(0.01)
        yield
    finally:
        process.terminate()
        process.wait(5)


def _used_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def probe(cpu: int, neighbours: dict[str, int]) -> dict[str, float]:
    """What a busy loop on each of some CPUs does to the fixed work on one: its CPU time, x that without.

    Args:
        cpu: where the fixed work is done.
        neighbours: CPU of the busy loop, by name.
    """
    home = os.sched_getaffinity(0)
    found: dict[str, float] = {}
    with on_cpu(cpu, home):
        _middle()
        for name, other in neighbours.items():
            # Alone before and after: a clock that rises or falls meanwhile is not the neighbour's doing.
            alone = [_middle()]
            with busy(other):
                beside = _middle()
            alone.append(_middle())
            found[name] = 2 * beside / sum(alone)
    return found


def _middle() -> float:
    values = []
    until = time.monotonic() + PROBE_S
    while time.monotonic() < until:
        values.append(arithmetic()[0])
    return float(np.median(values))
