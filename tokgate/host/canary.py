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

from tokgate.host import gpu, proc

ROOT = Path(__file__).parents[2]
PERIOD_S = 0.1
LOOPS = 3_000
"""Of the fixed arithmetic: about 0.1 ms of a current CPU."""
TIMES = 3
"""The quickest counts, so that an interrupt does not."""
QUICK = 0.1
"""Quantile of what was seen so far that counts as undisturbed: of the CPUs scanned before each run, or of the looks at
the schedulers' own, whichever is quicker."""
ENOUGH_LOOKS = 4
"""Of a run: fewer say nothing. Runs of half a second have none of this cause, and say so."""
START_S, ANSWER_S = 10.0, 2.0


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


def scan(home: set[int], work: Callable[[], tuple[float, float]] = arithmetic) -> dict[int, float]:
    """CPU time of the fixed work on every CPU of this process, ms; 0.4 ms each."""
    found = {}
    for cpu in sorted(home):
        with contextlib.suppress(OSError), on_cpu(cpu, home):
            found[cpu] = work()[0]
    return found


class Looks:
    """What was seen, and what counts as undisturbed.

    Args:
        work: the fixed work; another in tests.
    """

    KEPT = 20_000

    def __init__(self, work: Callable[[], tuple[float, float]] = arithmetic) -> None:
        self._work = work
        self._scanned: list[float] = []
        self._own: list[float] = []
        self._run: dict[int, list[float]] = {}
        self._busy: list[float] = []
        self._home = os.sched_getaffinity(0)

    def begin(self) -> None:
        """A run begins: every CPU is looked at once, for what is undisturbed."""
        self._run, self._busy = {}, []
        self._scanned = (self._scanned + list(scan(self._home, self._work).values()))[-self.KEPT :]

    def look(self, pids: Sequence[int], busy: float | None) -> None:
        """Once on the CPU of each scheduler.

        Args:
            busy: percent of the time for which the GPUs had something to do.
        """
        for pid in pids:
            cpu = cpu_of(pid)
            if cpu is None:
                continue
            with contextlib.suppress(OSError), at_once(), on_cpu(cpu, self._home):
                self._run.setdefault(pid, []).append(self._work()[0])
        if busy is not None:
            self._busy.append(busy)

    def end(self) -> dict[str, float]:
        """Figures of the run; see :meth:`Canary.watch`."""
        self._own = (self._own + [value for looks in self._run.values() for value in looks])[-self.KEPT :]
        slowest = max((fmean(v) for v in self._run.values() if len(v) >= ENOUGH_LOOKS), default=None)
        found: dict[str, float] = {}
        if slowest is not None:
            found["scheduler_cpu_slowdown"] = slowest / min(_quick(self._own), _quick(self._scanned))
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
            ``scheduler_cpu_slowdown`` (CPU time of the fixed work on the worst scheduler's CPU, mean of the run, x that
            on an undisturbed CPU) and ``gpu_busy_share`` (median of the run's second half); what cannot be told is
            absent.

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
        if not line:
            self.close()
            return {}
        return {str(name): float(value) for name, value in json.loads(line).items()}

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
