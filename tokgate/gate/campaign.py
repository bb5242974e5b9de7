"""Campaign: every server of a run is visited once; while it is up, all that is planned for it is measured.

Before a server gives way to the next one, what is still planned for it is measured, so that a comparison
across profiles never starts a server twice. On a GPU one server is up at a time, or several that were started
together, of which one is measured at a time; emulated servers are visited side by side, in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

from tokgate.config.profiles import Profile
from tokgate.errors import TokgateError
from tokgate.gate.measurement import Cancelled, Measurer
from tokgate.gate.visit import WAKE_S, Planned, Visit
from tokgate.server.pool import Pool
from tokgate.server.running import Server
from tokgate.server.teardown import Teardown


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
                wait(pending, timeout=WAKE_S)

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
