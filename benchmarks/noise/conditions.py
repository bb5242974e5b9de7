"""Conditions under which a run is measured: which CPUs the engine and the client may use, and priority."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.noise.canary import busy, siblings
from tokgate.server.running import Server

PLANTED = "planted: sibling busy"
"""The engine pinned, and a busy loop on the other CPU of its main thread's core: what a neighbour does."""
CANARY_OFF = "no canary there"
"""The sampler looks as ever, without its canary on the scheduler's CPU."""
QUICKEST = "on the quickest CPU"
"""The scheduler's main thread on the CPU that did the fixed work quickest just before the run."""
CONDITIONS = (
    "default",
    QUICKEST,
    "engine pinned",
    "both pinned",
    "both, nice -10",
    CANARY_OFF,
    "unwatched",
    PLANTED,
)
PINNED = ("engine pinned", "both pinned", "both, nice -10", PLANTED)


class Cores:
    """Physical cores of this process, as sets of CPUs; pairs of neighbours where the topology is not told."""

    def __init__(self) -> None:
        self.all = os.sched_getaffinity(0)
        groups: dict[frozenset[int], None] = {}
        self.told = True
        for cpu in sorted(self.all):
            group, told = siblings(cpu)
            self.told &= told
            groups[frozenset(group & self.all)] = None
        self.cores = [set(group) for group in groups]

    @property
    def enough(self) -> bool:
        return len(self.cores) >= 5

    @property
    def main(self) -> set[int]:
        """The scheduler's main thread; the core's other CPU is left idle."""
        return {min(self.cores[1])}

    @property
    def beside(self) -> int:
        """The other CPU of that core."""
        return max(self.cores[1])

    @property
    def helpers(self) -> set[int]:
        return self.cores[2]

    @property
    def client(self) -> set[int]:
        return self.cores[-2]

    @property
    def canary(self) -> int:
        return min(self.cores[-1]) if len(self.cores) > 1 else -1

    @property
    def others(self) -> set[int]:
        return self.all - self.cores[1] - self.cores[2] - self.cores[-2] - self.cores[-1]


def _set(threads: Iterable[int], cpus: set[int]) -> None:
    for thread in threads:
        try:
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:
            continue


def _threads(pid: int) -> list[int]:
    try:
        return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []


@contextmanager
def applied(
    condition: str, server: Server, main: int | None, cores: Cores, scanned: Mapping[int, float]
) -> Iterator[list[int] | None]:
    """A condition while a run is measured; gives the client's CPUs.

    Args:
        scanned: CPU time of the fixed work by CPU, just now.

    Raises:
        OSError: this host does not allow it.
    """
    pids = [process.pid for process in server.processes()]
    engine = condition in PINNED
    client = condition in ("both pinned", "both, nice -10")
    try:
        if engine:
            for pid in pids:
                if pid == main:
                    _set([t for t in _threads(pid) if t != pid], cores.helpers)
                    _set([pid], cores.main)
                else:
                    _set(_threads(pid), cores.others)
        if condition == QUICKEST and main is not None and scanned:
            _set([main], {min(scanned, key=scanned.__getitem__)})
        if condition.endswith("nice -10") and main is not None:
            os.setpriority(os.PRIO_PROCESS, main, -10)
        beside = busy(cores.beside) if condition == PLANTED else contextlib.nullcontext()
        with beside:
            yield sorted(cores.client) if client else sorted(cores.others) if engine else None
    finally:
        for pid in pids:
            _set(_threads(pid), cores.all)
        if condition.endswith("nice -10") and main is not None:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, main, 0)
