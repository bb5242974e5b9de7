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
# Told to stop, a worker writes what it has: some 2 us an event, and it gives signs of life meanwhile.
STOP_S = 10.0
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


@dataclass(frozen=True, slots=True)
class Run:
    """What became of the workers.

    Attributes:
        start_ns: the run's start, CLOCK_MONOTONIC.
        brought: numbers of those whose results are there.
        stopped: why the caller ended the run; empty when it did not.
        lost: what befell a worker that brought nothing; ``None`` when each brought its results.
    """

    start_ns: int
    brought: tuple[int, ...]
    stopped: str = ""
    lost: LoadFault | None = None


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
        self.ready = self.ended = self.gone = False
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

    @property
    def silent_s(self) -> float:
        """Seconds since its last sign of life."""
        return time.monotonic() - self.alive_at

    def silent(self, limit_s: float) -> LoadFault:
        """The fault for a worker without a sign of life."""
        return LoadFault(
            f"measuring client: no sign of life from worker {self.number} for {limit_s:g} s",
            ["the machine is starved, or the worker was stopped"],
        )

    def tell(self, word: bytes) -> None:
        """Write a line to it; one that died is noticed by its own pipe."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(word + b"\n")
            self.process.stdin.flush()

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
    stop: Callable[[], str] | None = None,
) -> Run:
    """Run ``count`` workers on the jobs in ``folder`` to their end, or until told to stop.

    Args:
        folder: holds the jobs; receives the results.
        count: number of workers.
        total: requests in all, for progress.
        silence_s: limit without a sign of life from a worker.
        on_progress: called on each sign of life.
        stop: asked about four times a second; words that are not empty end the run, and say why.

    Returns:
        What became of them. When one is lost, or the run is stopped, the others bring what they have.

    Raises:
        LoadFault: a worker died, or gave no sign of life, before the run began.
    """
    workers: list[_Worker] = []
    stop = stop or (lambda: "")
    lost: LoadFault | None = None
    with selectors.DefaultSelector() as selector:
        try:
            for number in range(count):
                worker = _Worker(folder, number)
                workers.append(worker)
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            stopped = _watch(selector, workers, lambda w: w.ready, START_S, lambda: None, stop)
            start_ns = time.monotonic_ns() + int(LEAD_S * 1e9)
            if stopped:
                return Run(start_ns, (), stopped)
            for worker in workers:
                worker.tell(b"go %d" % start_ns)

            def report() -> None:
                if on_progress is not None:
                    done, failed, events = (sum(w.counts[i] for w in workers) for i in range(3))
                    elapsed_s = max(0.0, (time.monotonic_ns() - start_ns) / 1e9)
                    on_progress(Progress(done, failed, total, events, elapsed_s))

            try:
                stopped = _watch(selector, workers, lambda w: w.ended, silence_s, report, stop)
            except LoadFault as fault:
                lost = fault
            if stopped or lost is not None:
                unheard = _gather(selector, workers, min(silence_s, STOP_S))
                lost = lost or unheard
        finally:
            for worker in workers:
                worker.end()
    return Run(start_ns, tuple(w.number for w in workers if w.ended), stopped, lost)


def _watch(
    selector: selectors.BaseSelector,
    workers: list[_Worker],
    reached: Callable[[_Worker], bool],
    silence_s: float,
    report: Callable[[], None],
    stop: Callable[[], str],
) -> str:
    """Read from the workers until each has reached its goal, or the caller says stop; returns its words."""
    for worker in workers:
        worker.alive_at = time.monotonic()
    while not all(map(reached, workers)):
        if why := stop():
            return why
        for worker in _hear(selector):
            if worker.gone and not reached(worker):
                raise worker.died()
            report()
        for worker in workers:
            if not reached(worker) and worker.silent_s > silence_s:
                raise worker.silent(silence_s)
    return ""


def _hear(selector: selectors.BaseSelector) -> list[_Worker]:
    """Wait a little for what the workers write; returns those that did, or are gone."""
    heard = []
    for key, _ in selector.select(0.25):
        worker: _Worker = key.data
        data = os.read(key.fd, 65536)
        if data:
            worker.take(data)
        else:
            selector.unregister(key.fileobj)
            worker.gone = True
        heard.append(worker)
    return heard


def _gather(selector: selectors.BaseSelector, workers: list[_Worker], silence_s: float) -> LoadFault | None:
    """Have the workers stop and bring what they have; returns what befell the first that does not."""
    waited = [worker for worker in workers if not worker.ended]
    for worker in waited:
        worker.tell(b"stop")
    fault = None
    while waited:
        _hear(selector)
        for worker in waited:
            if worker.ended:
                continue
            if worker.gone:
                fault = fault or worker.died()
            elif worker.silent_s > silence_s:
                fault = fault or worker.silent(silence_s)
        waited = [w for w in waited if not (w.ended or w.gone or w.silent_s > silence_s)]
    return fault
