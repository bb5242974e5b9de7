"""Campaign: every server of a run is visited once; while it is up, all that is planned for it is measured.

Before a server gives way to the next one, what is still planned for it is measured, so that a comparison
across profiles never starts a server twice. On a GPU one server is up at a time, or several that were started
together, of which one is measured at a time; emulated servers are visited side by side, in the background.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, cast

from tokgate.analysis.parity_case import Case
from tokgate.config.profiles import Profile
from tokgate.config.workloads import Workload
from tokgate.errors import EngineFault, TokgateError
from tokgate.gate.cycle.traces import Traced
from tokgate.gate.facts import ServerFacts, read_facts
from tokgate.gate.measurement import Cancelled, Measured, Measurer, Started
from tokgate.gate.parity import Answers
from tokgate.gate.starts import Starts
from tokgate.server.pool import Pool
from tokgate.server.running import Server
from tokgate.server.teardown import Teardown

T = TypeVar("T")
_WAKE_S = 0.5


@dataclass(frozen=True, slots=True)
class Planned:
    """A profile and what is measured on its server.

    Attributes:
        workloads: measured in this order.
        cases: of greedy parity, by name.
        as_reference: whether other profiles are held against its answers.
        starts: how often it is launched before it is measured.
        traced: whether steps of each workload are recorded, after all else is measured.
    """

    profile: Profile
    workloads: tuple[Workload, ...]
    cases: Mapping[str, Case] = field(default_factory=dict)
    as_reference: bool = False
    starts: int = 1
    traced: bool = False


class Visit:
    """One profile's server and what was measured on it. Thread-safe.

    Args:
        planned: what is visited and what for.
        pool: starts and keeps the servers; remembers failures.
        measurer: measures on them.
    """

    def __init__(self, planned: Planned, pool: Pool, measurer: Measurer) -> None:
        self.profile = planned.profile
        self._planned = planned
        self._pool = pool
        self._measurer = measurer
        self._lock = threading.RLock()
        self._starts: Starts | None = None
        self._facts: ServerFacts | None = None
        self._done: dict[str, object] = {}

    def server(self) -> Server:
        """The running server; started when it is not up.

        Raises:
            TokgateError: what a start, or a measurement on this profile's server, raised before; a
                profile that failed is not started again.
        """
        with _held(self._lock):
            if self._starts is None:
                self._starts = self._start()
                server = self._pool.get(self.profile)
                self._facts = read_facts(server.log_path, server.model_info)
            return self._pool.get(self.profile)

    def starts(self) -> Starts:
        """The launches that were asked for; made at the first call.

        Raises:
            TokgateError: as :meth:`server`.
        """
        with _held(self._lock):
            # A server that gave way to another is not launched again for what is known of its start.
            if self._starts is None or self._starts.last_failed:
                self.server()
            assert self._starts is not None
            return self._starts

    def _start(self) -> Starts:
        """Launch as often as planned, with a stop in between; the last server stays."""
        good: list[Started] = []
        faults: dict[int, EngineFault] = {}
        for number in range(1, self._planned.starts + 1):
            self._measurer.check()
            if number > 1:
                self._pool.stop(self.profile)
                self._pool.forget(self.profile)
            try:
                server = self._pool.get(self.profile)
            except EngineFault as fault:
                faults[number] = fault
            else:
                good.append(self._measurer.startup(server, self.profile))
        starts = Starts(tuple(good), faults)
        if starts.last_failed and starts.fault is not None:
            # Whoever asks for the server learns how often it failed, not only how it did the last time.
            self._pool.forget(self.profile)
            self._pool.fail(self.profile, starts.fault)
        return starts

    def facts(self) -> ServerFacts:
        """What the log and the answers of the first start tell.

        Raises:
            TokgateError: as :meth:`server`.
        """
        with _held(self._lock):
            if self._facts is None:
                self.server()
            assert self._facts is not None
            return self._facts

    def measured(self, workload: Workload) -> Measured:
        """The runs of a workload; measured at the first call.

        Raises:
            EngineFault: the start failed, or the server hung or died in this or an earlier workload.
            TokgateError: this workload could not be measured (void runs, disk full).
        """
        return self._once(
            workload.name, lambda server: self._measurer.workload(server, self.profile, workload)
        )

    def answers(self, name: str) -> Answers:
        """The greedy answers to a planned parity case; asked at the first call.

        Raises:
            TokgateError: as :meth:`measured`.
        """
        case, as_reference = self._planned.cases[name], self._planned.as_reference
        return self._once(
            f"parity {name}",
            lambda server: self._measurer.parity(server, case, as_reference=as_reference),
        )

    def traced(self, workload: Workload) -> Traced:
        """The trace of a workload's steps; recorded at the first call, after all that is planned is measured.

        Raises:
            TokgateError: as :meth:`measured`.
        """
        with _held(self._lock):
            if f"trace {workload.name}" not in self._done:
                self._measure_untraced()
            return self._once(
                f"trace {workload.name}",
                lambda server: self._measurer.trace(server, self.profile, workload),
            )

    def _once(self, key: str, do: Callable[[Server], T]) -> T:
        """What ``do`` gives on the running server: done once, its fault remembered as well."""
        with _held(self._lock):
            if key not in self._done:
                server = self.server()
                try:
                    self._done[key] = do(server)
                except EngineFault as error:
                    self._pool.fail(self.profile, error)
                    raise
                except TokgateError as error:
                    # The server is well: what else is asked of it may fare better.
                    self._done[key] = error
            done = self._done[key]
            if isinstance(done, TokgateError):
                raise done
            return cast(T, done)

    def measure_planned(self) -> None:
        """Do all that is planned. A failure is kept for whoever asks for the figures."""
        self._measure_untraced()
        if self._planned.traced:
            self._do_all([partial(self.traced, workload) for workload in self._planned.workloads])

    def _measure_untraced(self) -> None:
        """All but the traces: a profiler that was attached once may leave the server slower."""
        tasks: list[Callable[[], object]] = [partial(self.measured, w) for w in self._planned.workloads]
        self._do_all([*tasks, *(partial(self.answers, name) for name in self._planned.cases)])

    def _do_all(self, tasks: Sequence[Callable[[], object]]) -> None:
        for task in tasks:
            try:
                task()
            except TokgateError:
                continue
            except Cancelled:
                return


@contextmanager
def _held(lock: threading.RLock) -> Iterator[None]:
    """Hold a lock; waiting for it wakes now and then, or a Ctrl-C that another thread got would wait too."""
    while not lock.acquire(timeout=_WAKE_S):
        pass
    try:
        yield
    finally:
        lock.release()


def _started(visit: Visit) -> None:
    """Start a profile's server; a failure is kept for whoever asks for it."""
    with suppress(TokgateError, Cancelled):
        visit.starts()


class Campaign:
    """All visits of a run.

    Args:
        plan: in the order of visits; a profile's reference stands before it.
        start: starts the server of a profile.
        measurer: measures on servers.
        side_by_side: whether all servers may be up, and measured, at once.
        together: otherwise, how many are started at once; they stay up until the next so many start.
    """

    def __init__(
        self,
        plan: Sequence[Planned],
        start: Callable[[Profile], Server],
        measurer: Measurer,
        *,
        side_by_side: bool,
        together: int = 1,
    ) -> None:
        self._pool = Pool(len(plan) if side_by_side else together, start)
        self._together = together
        self._started: set[str] = set()
        self._visits = {planned.profile.name: Visit(planned, self._pool, measurer) for planned in plan}
        self._measurer = measurer
        self._current: Visit | None = None
        self._background = ThreadPoolExecutor(len(plan), "visit") if side_by_side else None
        self._begun = False
        self._tasks: list[Future[None]] = []

    def processes(self) -> list[int]:
        """Process ids of all servers that are up."""
        return [process.pid for server in self._pool.servers() for process in server.processes()]

    def make_room(self) -> None:
        """Measure what is planned for servers that are up, then stop them all: others need the GPU.

        What was measured stays; a server that is asked for again is launched again.
        """
        wait(self._tasks)
        if self._background is None and self._current is not None:
            self._current.measure_planned()
        for visit in self._visits.values():
            self._pool.stop(visit.profile)

    def visit(self, profile: str) -> Visit:
        """The visit of a profile. Where one server is up at a time, what is planned for the one before
        it is measured first."""
        visit = self._visits[profile]
        if self._background is not None:
            if not self._begun:
                self._begun = True
                self._tasks = [self._background.submit(v.measure_planned) for v in self._visits.values()]
        elif self._current is not visit:
            if self._current is not None:
                self._current.measure_planned()
            self._current = visit
            self._start_with_next(visit)
        return visit

    def _start_with_next(self, visit: Visit) -> None:
        """Start a profile's server and those of the next ones at the same time; wait until all are up.

        Nothing is measured while a server starts.
        """
        if self._together == 1 or visit.profile.name in self._started:
            return
        waiting = [name for name in self._visits if name not in self._started and name != visit.profile.name]
        group = [visit.profile.name, *waiting[: self._together - 1]]
        self._started.update(group)
        with ThreadPoolExecutor(len(group), "start") as starters:
            pending = [starters.submit(_started, self._visits[name]) for name in group]
            while any(not future.done() for future in pending):
                # Woken now and then: a Ctrl-C is handled between two waits.
                wait(pending, timeout=_WAKE_S)

    def close(self) -> list[Teardown]:
        """Stop every server. A measurement under way ends with its current run.

        Returns:
            How each server that was stopped, now or earlier, ended.
        """
        self._measurer.cancel()
        if self._background is not None:
            self._background.shutdown(wait=True, cancel_futures=True)
        self._pool.close()
        return list(self._pool.teardowns.values())
