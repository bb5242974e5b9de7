"""What a host and an engine's processes did over a run: counters of /proc and of perf_event_open.

A counter that this host does not have is left out, never 0.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

PROC = Path("/proc")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

_PERF_EVENT_OPEN = 298  # x86-64
_HARDWARE, _SOFTWARE = 0, 1
PERF = {
    "cycles": (_HARDWARE, 0),
    "instructions": (_HARDWARE, 1),
    "cache_misses": (_HARDWARE, 3),
    "ref_cycles": (_HARDWARE, 9),
    "task_clock_ns": (_SOFTWARE, 1),
    "context_switches": (_SOFTWARE, 3),
    "migrations": (_SOFTWARE, 4),
}
_EXCLUDE_KERNEL, _EXCLUDE_HV = 1 << 5, 1 << 6


class PerfCounters:
    """Counters of one thread, for as long as this object lives; those that the kernel refuses are left out.

    Attributes:
        refused: name of the counter -> why, for the record.
    """

    def __init__(self, thread: int) -> None:
        self.refused: dict[str, str] = {}
        self._open: dict[str, int] = {}
        libc = ctypes.CDLL(None, use_errno=True)
        for name, (kind, config) in PERF.items():
            # struct perf_event_attr, first published size: type, size, config, period, sample, read, flags.
            flags = _EXCLUDE_HV | (_EXCLUDE_KERNEL if kind == _HARDWARE else 0)
            attributes = struct.pack("<IIQQQQQIIQ", kind, 64, config, 0, 0, 0, flags, 0, 0, 0)
            buffer = ctypes.create_string_buffer(attributes, 64)
            descriptor = libc.syscall(_PERF_EVENT_OPEN, buffer, thread, -1, -1, 0)
            if descriptor < 0:
                self.refused[name] = os.strerror(ctypes.get_errno())
            else:
                self._open[name] = descriptor

    def read(self) -> dict[str, float]:
        """Counts since the start."""
        return {
            f"perf_{name}": float(struct.unpack("<Q", os.read(fd, 8))[0]) for name, fd in self._open.items()
        }

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


def counters(pids: Iterable[int], main: int | None) -> dict[str, float]:
    """Counters of the host, of an engine's processes, and of the main thread of its scheduler.

    Args:
        pids: the engine's processes.
        main: process id of the scheduler; its main thread has the same number.
    """
    found = _cpus() | _softirqs() | _pressure() | _interrupts()
    for pid in pids:
        for name, value in _threads(pid, main).items():
            found[name] = found.get(name, 0.0) + value
    return found


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What moved, of counters that both have."""
    return {name: after[name] - before[name] for name in after if name in before}


def _cpus() -> dict[str, float]:
    found: dict[str, float] = {}
    for line in (PROC / "stat").read_text().splitlines():
        fields = line.split()
        if fields[0] == "cpu":
            user, nice, system, idle, wait, hard, soft, steal = (int(x) * TICK_S for x in fields[1:9])
            found["cpu_used_s"] = user + nice + system + hard + soft
            found["cpu_system_s"], found["cpu_softirq_s"] = system, soft
            found["cpu_steal_s"], found["cpu_idle_s"] = steal, idle + wait
        elif fields[0] == "ctxt":
            found["host_context_switches"] = float(fields[1])
    return found


def _softirqs() -> dict[str, float]:
    try:
        lines = (PROC / "softirqs").read_text().splitlines()[1:]
    except OSError:
        return {}
    rows = (line.split() for line in lines)
    return {f"softirq_{row[0].rstrip(':').lower()}": float(sum(map(int, row[1:]))) for row in rows}


def _interrupts() -> dict[str, float]:
    """Interrupts of the kinds that move work between CPUs or come from timers."""
    try:
        lines = (PROC / "interrupts").read_text().splitlines()[1:]
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, _, rest = line.strip().partition(":")
        numbers = [int(word) for word in rest.split() if word.isdigit()]
        if name in ("RES", "CAL", "TLB", "LOC"):
            found[f"irq_{name.lower()}"] = float(sum(numbers))
    return found


def _pressure() -> dict[str, float]:
    found = {}
    for what in ("cpu", "memory", "io"):
        try:
            line = (PROC / "pressure" / what).read_text().splitlines()[0]
        except (OSError, IndexError):
            continue
        found[f"pressure_{what}_some_s"] = int(line.rsplit("total=", 1)[1]) / 1e6
    return found


def _threads(pid: int, main: int | None) -> dict[str, float]:
    """CPU time, wait for a CPU and context switches of a process; of the scheduler's main thread apart."""
    found: dict[str, float] = {}

    def add(name: str, value: float) -> None:
        found[name] = found.get(name, 0.0) + value

    try:
        tasks = sorted((PROC / str(pid) / "task").iterdir())
    except OSError:
        return {}
    for task in tasks:
        try:
            ran_ns, waited_ns, _ = (task / "schedstat").read_text().split()
            status = (task / "status").read_text()
        except (OSError, ValueError):
            continue
        switches = {
            line.split("_ctxt")[0]: float(line.split()[1])
            for line in status.splitlines()
            if "_ctxt_switches" in line
        }
        who = "main" if task.name == str(main) else "rest"
        add(f"{who}_cpu_s", int(ran_ns) / 1e9)
        add(f"{who}_run_delay_s", int(waited_ns) / 1e9)
        add(f"{who}_voluntary_switches", switches.get("voluntary", 0.0))
        add(f"{who}_involuntary_switches", switches.get("nonvoluntary", 0.0))
        if who == "main":
            fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
            add("main_user_s", int(fields[11]) * TICK_S)
            add("main_system_s", int(fields[12]) * TICK_S)
            add("main_minor_faults", float(fields[7]))
    return found
