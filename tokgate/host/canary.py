"""How quick the scheduler's CPU is while a run is measured: fixed work on that CPU, ten times a second.

A virtual CPU may share its physical core with a neighbour's; while that one is busy it does the same work in 1.3 to 1.7
times the CPU time, and no counter of /proc says so (docs/explanation/noise.md). The work is done by a process of its
own (``python -m tokgate.host.canary``), which also asks NVML how busy the GPUs are: a step that the GPU bounds is not
slowed down by a slow CPU.

Commands come on its standard input, a line each: ``{"pids": [...], "gpus": [...]}`` begins a watch, ``{}`` ends it and
is answered with one line; it ends when its input does, as when who measures is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import IO

from tokgate.host import gpu
from tokgate.host.cpu_speed import Ticks, arithmetic, at_once, cpu_of, cpu_ticks, on_cpu, scan

ROOT = Path(__file__).parents[2]
PERIOD_S = 0.1
QUICK = 0.1
"""Quantile of what was seen so far that counts as undisturbed: of the CPUs scanned before each run, or of the looks at
the schedulers' own, whichever is quicker."""
ENOUGH_LOOKS = 4
"""Of a run: fewer say nothing. Runs of half a second have none of this cause, and say so."""
START_S, ANSWER_S = 10.0, 2.0


class Looks:
    """What was seen, and what counts as undisturbed.

    Args:
        work: the fixed work; another in tests.
        ticks: of every CPU, as :func:`cpu_ticks`.
    """

    KEPT = 20_000

    def __init__(
        self,
        work: Callable[[], tuple[float, float]] = arithmetic,
        ticks: Callable[[], Mapping[int, Ticks]] | None = None,
    ) -> None:
        self._work = work
        self._ticks = ticks or cpu_ticks
        self._last: Mapping[int, Ticks] = {}
        self._under: dict[int, Ticks] = {}
        self._scanned: list[float] = []
        self._own: list[float] = []
        self._run: dict[int, list[float]] = {}
        self._busy: list[float] = []
        self._home = os.sched_getaffinity(0)

    def begin(self) -> None:
        """A run begins: every CPU is looked at once, for what is undisturbed."""
        self._run, self._busy, self._under = {}, [], {}
        self._last = self._ticks()
        self._scanned = (self._scanned + list(scan(self._home, self._work).values()))[-self.KEPT :]

    def look(self, pids: Sequence[int], busy: float | None) -> None:
        """Once on the CPU of each scheduler.

        Args:
            busy: percent of the time for which the GPUs had something to do.
        """
        ticks = self._ticks()
        for pid in pids:
            cpu = cpu_of(pid)
            if cpu is None:
                continue
            if cpu in ticks and cpu in self._last:
                self._under[pid] = self._under.get(pid, Ticks(0, 0)) + (ticks[cpu] - self._last[cpu])
            with contextlib.suppress(OSError), at_once(), on_cpu(cpu, self._home):
                self._run.setdefault(pid, []).append(self._work()[0])
        self._last = ticks
        if busy is not None:
            self._busy.append(busy)

    def end(self) -> dict[str, float]:
        """Figures of the run; see :meth:`Canary.watch`."""
        self._own = (self._own + [value for looks in self._run.values() for value in looks])[-self.KEPT :]
        slowest = max((fmean(v) for v in self._run.values() if len(v) >= ENOUGH_LOOKS), default=None)
        found: dict[str, float] = {}
        if slowest is not None:
            found["scheduler_cpu_slowdown"] = slowest / min(_quick(self._own), _quick(self._scanned))
        stolen = [under.stolen / under.all for under in self._under.values() if under.all]
        if stolen:
            found["scheduler_steal_share"] = max(stolen)
        # NVML tells the last tenths of a second: the first half of a short run is still about what was before.
        late = self._busy[len(self._busy) // 2 :]
        if late:
            found["gpu_busy_share"] = median(late) / 100
        return found


def _quick(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[int(QUICK * len(ordered))] if ordered else float("inf")


class Canary:
    """The process, from the side of who measures. A context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = subprocess.Popen(
            [sys.executable, "-m", "tokgate.host.canary"],
            # From wherever this tokgate is: its folder need not be on the path of a new interpreter.
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answer(START_S)

    @contextmanager
    def watch(self, pids: Sequence[int], gpus: Sequence[int]) -> Iterator[dict[str, float]]:
        """Look while the body runs; the figures are there when it has ended.

        Yields:
            Of the worst scheduler: ``scheduler_cpu_slowdown`` (CPU time of the fixed work on its CPU, mean of the run,
            x that on an undisturbed CPU) and ``scheduler_steal_share`` (of the time of its CPU). And ``gpu_busy_share``
            (median of the run's second half). What cannot be told is absent.

        Args:
            pids: schedulers.
            gpus: NVML indices of their GPUs.
        """
        found: dict[str, float] = {}
        self._tell({"pids": list(pids), "gpus": list(gpus)})
        try:
            yield found
        finally:
            self._tell({})
            found.update(self._answer())

    def _tell(self, command: Mapping[str, object]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except OSError:
            self.close()

    def _answer(self, within_s: float = ANSWER_S) -> dict[str, float]:
        """One that does not come in time is not waited for, and none is asked for again."""
        if self._process is None or self._process.stdout is None:
            return {}
        ready, _, _ = select.select([self._process.stdout], [], [], within_s)
        line = self._process.stdout.readline() if ready else ""
        try:
            return {str(name): float(value) for name, value in json.loads(line).items()}
        except ValueError:  # no answer, or half of one: it was killed
            self.close()
            return {}

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()

    def __enter__(self) -> Canary:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _busy(nvml: gpu.Nvml | None, gpus: Sequence[int]) -> float | None:
    """Of the least busy of some GPUs, percent."""
    told = (
        [] if nvml is None else [value for index in gpus if (value := nvml.busy_percent(index)) is not None]
    )
    return min(told, default=None)


def serve(commands: int, answers: IO[str], looks: Looks, nvml: gpu.Nvml | None) -> None:
    """Obey commands until there are no more.

    Args:
        commands: file descriptor.
    """
    watched: dict[str, list[int]] | None = None
    due, rest = time.monotonic(), b""
    while True:
        wait = None if watched is None else max(0.0, due - time.monotonic())
        if select.select([commands], [], [], wait)[0]:
            read = os.read(commands, 1 << 16)
            if not read:
                return
            *lines, rest = (rest + read).split(b"\n")
            for told in map(json.loads, lines):
                if told:
                    looks.begin()
                    watched, due = told, time.monotonic()
                else:
                    watched = None
                    print(json.dumps(looks.end()), file=answers, flush=True)
        elif watched is not None:
            looks.look(watched["pids"], _busy(nvml, watched["gpus"]))
            due = max(due + PERIOD_S, time.monotonic())


def main() -> None:
    """The process."""
    # Ctrl-C is the gate's business; its end closes our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    opened = gpu.open_nvml()
    looks = Looks()
    print("{}", flush=True)
    serve(sys.stdin.fileno(), sys.stdout, looks, None if isinstance(opened, str) else opened)


if __name__ == "__main__":
    main()
