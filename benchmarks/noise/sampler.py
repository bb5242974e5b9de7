"""A process of its own that looks at GPU and CPU ten times a second while runs are measured.

``python -m benchmarks.noise.sampler OUT.jsonl MAIN_PID CPU``: one JSON object a line until SIGTERM: the GPU's clocks,
power, temperature and reasons of throttling; the CPU on which the scheduler's main thread is; and the canary:
how long a fixed piece of work took on a spare CPU, in CPU time and by the wall. Work that takes more CPU time
than before means that the CPU itself is slower: clock, a busy sibling, caches.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

PERIOD_S = 0.1
CANARY_LOOPS = 12_000


def main() -> None:
    out, main_pid, cpu = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    if cpu >= 0:
        os.sched_setaffinity(0, {cpu})
    gpu = _Gpu()
    with out.open("w", encoding="utf-8") as file:
        due = time.monotonic()
        while not ended:
            row = {"t_s": time.monotonic(), **_canary(), "main_on_cpu": _on_cpu(main_pid), **gpu.read()}
            file.write(json.dumps(row) + "\n")
            file.flush()
            # Never behind: after a stop (a run that nobody looks at) it goes on at its pace.
            due = max(due + PERIOD_S, time.monotonic())
            time.sleep(due - time.monotonic() if due > time.monotonic() else 0)


def _canary() -> dict[str, float]:
    """The quickest of three, ms: an interrupt in one of them does not count."""
    cpu, wall = [], []
    for _ in range(3):
        began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
        total = 0
        for number in range(CANARY_LOOPS):
            total += number
        cpu.append(time.thread_time_ns() - began_cpu)
        wall.append(time.perf_counter_ns() - began)
    return {"canary_cpu_ms": min(cpu) / 1e6, "canary_wall_ms": min(wall) / 1e6}


def _on_cpu(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[36])
    except (OSError, IndexError, ValueError):
        return None


class _Gpu:
    """The first visible GPU through NVML; what it does not answer is left out."""

    def __init__(self) -> None:
        self._library: Any = None
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        except pynvml.NVMLError:  # no driver, or no GPU
            return
        self._library = pynvml

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
        found = {}
        for name, ask in asked.items():
            try:
                found[name] = float(ask())  # type: ignore[no-untyped-call]
            except n.NVMLError:  # this GPU does not tell
                continue
        return found


if __name__ == "__main__":
    main()
