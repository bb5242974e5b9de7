"""Start the measuring workers, let them begin together, and never be held up by one."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tokgate
from tokgate.errors import LoadFault

# Interpreter start and stamping warm-up take 0.1 to 0.6 s; a starved machine gets much more.
START_S = 60.0
LEAD_S = 0.02
# tokgate's folder comes last on the path: beside it may lie modules that are named like Python's own.
_BOOT = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from tokgate.load.worker import main; raise SystemExit(main(sys.argv[1:]))"
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: requests done and failed, of how many, events received, seconds since the start."""

    done: int
    failed: int
    total: int
    events: int
    elapsed_s: float


class _Worker:
    def __init__(self, folder: Path, number: int) -> None:
        root = str(Path(tokgate.__file__).parent.parent)
        self.number = number
        self.errors = folder / f"stderr{number}.txt"
        with self.errors.open("wb") as errors:
            # A session of its own: Ctrl-C reaches the client alone, which then ends its workers.
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, root, str(folder), str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self.pending = b""
        self.ready = self.ended = False
        self.alive_at = time.monotonic()
        self.counts = (0, 0, 0)

    def take(self, data: bytes) -> None:
        """Lines from the worker."""
        *lines, self.pending = (self.pending + data).split(b"\n")
        self.alive_at = time.monotonic()
        for line in lines:
            match line.split():
                case [b"ready"]:
                    self.ready = True
                case [b"end"]:
                    self.ended = True
                case [b"beat", done, failed, events]:
                    self.counts = (int(done), int(failed), int(events))

    def died(self) -> LoadFault:
        """The fault for a worker whose pipe closed early."""
        code = self.process.wait()
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        text = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
        return LoadFault(f"measuring client: worker {self.number} died ({how})", text)

    def end(self) -> None:
        """Stop the process, whatever it does."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        if not self.ended:
            self.process.kill()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def run_workers(
    folder: Path,
    count: int,
    total: int,
    silence_s: float,
    on_progress: Callable[[Progress], None] | None = None,
) -> int:
    """Run ``count`` workers on the jobs in ``folder`` to their end.

    Args:
        folder: holds the jobs; receives the results.
        count: number of workers.
        total: requests in all, for progress.
        silence_s: limit without a sign of life from a worker.
        on_progress: called on each sign of life.

    Returns:
        The run's start, CLOCK_MONOTONIC ns.

    Raises:
        LoadFault: a worker died, or gave no sign of life.
    """
    workers: list[_Worker] = []
    with selectors.DefaultSelector() as selector:
        try:
            for number in range(count):
                worker = _Worker(folder, number)
                workers.append(worker)
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            _watch(selector, workers, lambda w: w.ready, START_S, lambda: None)
            start_ns = time.monotonic_ns() + int(LEAD_S * 1e9)
            for worker in workers:
                assert worker.process.stdin is not None
                with contextlib.suppress(BrokenPipeError):  # a dead worker is reported by _watch
                    worker.process.stdin.write(b"go %d\n" % start_ns)
                    worker.process.stdin.flush()

            def report() -> None:
                if on_progress is not None:
                    done, failed, events = (sum(w.counts[i] for w in workers) for i in range(3))
                    elapsed_s = max(0.0, (time.monotonic_ns() - start_ns) / 1e9)
                    on_progress(Progress(done, failed, total, events, elapsed_s))

            _watch(selector, workers, lambda w: w.ended, silence_s, report)
        finally:
            for worker in workers:
                worker.end()
    return start_ns


def _watch(
    selector: selectors.BaseSelector,
    workers: list[_Worker],
    reached: Callable[[_Worker], bool],
    silence_s: float,
    report: Callable[[], None],
) -> None:
    """Read from the workers until each has reached its goal."""
    for worker in workers:
        worker.alive_at = time.monotonic()
    while not all(map(reached, workers)):
        for key, _ in selector.select(0.25):
            worker = key.data
            data = os.read(key.fd, 65536)
            if data:
                worker.take(data)
                report()
                continue
            selector.unregister(key.fileobj)
            if not reached(worker):
                raise worker.died()
        now = time.monotonic()
        for worker in workers:
            if not reached(worker) and now - worker.alive_at > silence_s:
                raise LoadFault(
                    f"measuring client: no sign of life from worker {worker.number} for {silence_s:g} s",
                    ["the machine is starved, or the worker was stopped"],
                )
