"""A process of its own that looks at GPU and CPU ten times a second while runs are measured.

``python -m benchmarks.noise.sampler OUT.jsonl MAIN_PID CPU``: one JSON object a line until SIGTERM: the clocks, power,
temperature and reasons of throttling of the GPU that CUDA_VISIBLE_DEVICES names, and how long NVML took to tell; the
CPU on which the scheduler's main thread is; what that CPU, its sibling and all others did since the last look; and the
canaries, each time on the spare CPU named and every second time also on the scheduler's own CPU (not between SIGUSR1
and SIGUSR2).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.noise.canary import Memory, siblings
from tokgate.host import gpu
from tokgate.host.cpu_speed import arithmetic, at_once, cpu_of, on_cpu
from tokgate.host.visible import visible_indices

PERIOD_S = 0.1
EVERY = 2
"""Looks between two of the canary on the scheduler's CPU: it takes about 0.5 ms of it each time."""


def main() -> None:
    out, main_pid, cpu = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    ended, there = False, True

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    def turn(number: int, _: object) -> None:
        nonlocal there
        there = number == signal.SIGUSR2

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGUSR1, turn)
    signal.signal(signal.SIGUSR2, turn)
    home = {cpu} if cpu >= 0 else os.sched_getaffinity(0)
    os.sched_setaffinity(0, home)
    card, cpus, memory = _Gpu(), _Cpus(), Memory()
    looks = 0
    with out.open("w", encoding="utf-8") as file:
        due = time.monotonic()
        while not ended:
            on = cpu_of(main_pid)
            row: dict[str, Any] = {"t_s": time.monotonic(), "main_on_cpu": on}
            row |= _canaries("canary", memory)
            if on is not None and there and looks % EVERY == 0:
                with at_once(), on_cpu(on, home):
                    row |= _canaries("own", memory)
            row |= cpus.read(on) | card.read()
            file.write(json.dumps(row) + "\n")
            file.flush()
            looks += 1
            # Never behind: after a stop (a run that nobody looks at) it goes on at its pace.
            due = max(due + PERIOD_S, time.monotonic())
            time.sleep(due - time.monotonic() if due > time.monotonic() else 0)


def _canaries(name: str, memory: Memory) -> dict[str, float]:
    """The fixed work where this thread is now, ms."""
    cpu_ms, wall_ms = arithmetic()
    return {
        f"{name}_cpu_ms": cpu_ms,
        f"{name}_wall_ms": wall_ms,
        f"{name}_memory_ms": memory.read(),
    }


class _Cpus:
    """What each CPU did since the last look."""

    KINDS = ("user", "nice", "system", "idle", "wait", "hard", "softirq", "steal")

    def __init__(self) -> None:
        self._last = self._ticks()

    def _ticks(self) -> dict[int, list[int]]:
        found = {}
        for line in Path("/proc/stat").read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                found[int(name[3:])] = [int(field) for field in fields[:8]]
        return found

    def read(self, own: int | None) -> dict[str, Any]:
        """Percent of the time: of every CPU busy, in order; of the scheduler's and its sibling by kind."""
        now, last = self._ticks(), self._last
        self._last = now
        moved = {
            cpu: [a - b for a, b in zip(ticks, last[cpu], strict=True)]
            for cpu, ticks in now.items()
            if cpu in last
        }
        found: dict[str, Any] = {
            "busy": [_percent(m, sum(m) - m[3] - m[4]) for _, m in sorted(moved.items())]
        }
        if own is None or own not in moved:
            return found
        sibling = next(iter(siblings(own)[0] - {own}))
        for name, cpu in (("own", own), ("sibling", sibling)):
            if (mine := moved.get(cpu)) is not None:
                found[f"{name}_busy"] = _percent(mine, sum(mine) - mine[3] - mine[4])
                for kind in ("system", "softirq", "steal"):
                    found[f"{name}_{kind}"] = _percent(mine, mine[self.KINDS.index(kind)])
        return found


def _percent(ticks: list[int], part: int) -> int | None:
    whole = sum(ticks)
    return round(100 * part / whole) if whole else None


class _Gpu:
    """The first GPU that CUDA_VISIBLE_DEVICES names, through NVML; what it does not answer is left out."""

    def __init__(self) -> None:
        self._library: Any = None
        opened = gpu.open_nvml()
        if isinstance(opened, str):
            return
        indices = visible_indices(opened, {}, 1)
        if not indices:
            return
        import pynvml

        self._library = pynvml
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(indices[0])
        self._index = indices[0]

    def read(self) -> dict[str, float]:
        n = self._library
        if n is None:
            return {}
        asked = {
            "sm_mhz": lambda: n.nvmlDeviceGetClockInfo(self._handle, n.NVML_CLOCK_SM),
            "mem_mhz": lambda: n.nvmlDeviceGetClockInfo(self._handle, n.NVML_CLOCK_MEM),
            "power_w": lambda: n.nvmlDeviceGetPowerUsage(self._handle) / 1e3,
            "gpu_c": lambda: n.nvmlDeviceGetTemperature(self._handle, n.NVML_TEMPERATURE_GPU),
            "throttle": lambda: n.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle),
            "gpu_util": lambda: n.nvmlDeviceGetUtilizationRates(self._handle).gpu,
        }
        found: dict[str, float] = {"gpu_index": float(self._index)}
        began = time.perf_counter_ns()
        for name, ask in asked.items():
            try:
                found[name] = float(ask())  # type: ignore[no-untyped-call]
            except n.NVMLError:  # this GPU does not tell
                continue
        found["nvml_ms"] = (time.perf_counter_ns() - began) / 1e6
        return found


if __name__ == "__main__":
    main()
