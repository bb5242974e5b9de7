"""Visit: one profile's server, and all that is measured on it while it is up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, cast

from tokgate.analysis.parity_case import Case
from tokgate.config.profiles import Profile
from tokgate.config.workloads import Workload
from tokgate.errors import EngineFault, TokgateError
from tokgate.gate.cycle.traces import Traced
from tokgate.gate.facts import ServerFacts, read_facts
from tokgate.gate.measurement import Cancelled, Measurer
from tokgate.gate.parity import Answers
from tokgate.gate.runs import Measured
from tokgate.gate.started import Started
from tokgate.gate.starts import Starts
from tokgate.server.pool import Pool
from tokgate.server.running import Server

T = TypeVar("T")
WAKE_S = 0.5
"""How long a wait lasts before it looks whether a Ctrl-C came meanwhile."""


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
    while not lock.acquire(timeout=WAKE_S):
        pass
    try:
        yield
    finally:
        lock.release()
