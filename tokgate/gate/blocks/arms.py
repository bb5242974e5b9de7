"""ServerBench: launches the arms of a block with real servers of their engines, and measures on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tokgate.config.workloads import Workload
from tokgate.errors import TokgateError
from tokgate.gate.blocks.runner import Arm, ArmFailed, BlockPlan
from tokgate.gate.cards import check_same_place
from tokgate.gate.measurement import Measurer
from tokgate.gate.results import Shelf
from tokgate.gate.runs import Measured, Runs
from tokgate.gate.setup import Setup
from tokgate.gate.start import Starter
from tokgate.gate.started import Started
from tokgate.server.pool import Pool
from tokgate.server.running import Server
from tokgate.server.teardown import Teardown

T = TypeVar("T")
Extras = Callable[[Arm, Server, Started], Mapping[str, object]]
"""What a caller wants to know of a launch besides, JSON values; asked after its runs."""

SEEDS_PER_PLAN = 4096
"""Launches of an emulated engine that a plan's seed keeps apart."""


class ServerBench:
    """Launches servers. Satisfies :class:`tokgate.gate.blocks.bench.Bench`.

    The caller holds the host's GPUs (:func:`tokgate.gate.claim.claim`).

    Args:
        setup: the checked request; an arm's own engine takes the place of its engine.
        plan: of the blocks.
        folder: ``<folder>/<arm>/`` gets an arm's Samples, logs and forensics.
        extras: see :data:`Extras`.

    Attributes:
        remarks: what a reader should know of how servers ended, one line each.

    Raises:
        UsageFault: an arm's engine is for other GPUs than those that are held.
    """

    def __init__(self, setup: Setup, plan: BlockPlan, folder: Path, extras: Extras | None = None) -> None:
        for arm in plan.arms:
            check_same_place(setup.engine, arm.engine)
        self.remarks: list[str] = []
        self._setup = setup
        self._plan = plan
        self._extras = extras
        self._shelves = {arm.name: Shelf(folder / arm.name) for arm in plan.arms}
        self._names = [arm.name for arm in plan.arms]

    @contextmanager
    def launch(self, number: int, arms: Sequence[Arm]) -> Iterator[_Launched]:
        """See :meth:`tokgate.gate.blocks.bench.Bench.launch`.

        Raises:
            ArmFailed: a server did not start (of several, the first one's fault), or did not end.
        """
        rigs: dict[str, _Rig] = {}

        def processes() -> list[int]:
            """Of all servers of the block: an arm that idles is not foreign to the one that is measured."""
            return [process.pid for rig in rigs.values() for process in rig.server.processes()]

        rigs |= {arm.name: self._rig(number, arm, processes) for arm in arms}
        launched = _Launched(rigs, self._extras)
        try:
            _all_of({name: rig.start for name, rig in rigs.items()})
            yield launched
        finally:
            # At the same time: one waits for GPU memory that the others still hold.
            ends = _all_of({name: rig.stop for name, rig in rigs.items()})
        self._judge(dict(zip(rigs, ends, strict=True)))

    def _rig(self, number: int, arm: Arm, beside: Callable[[], list[int]]) -> _Rig:
        setup = replace(self._setup, engine=arm.engine)
        if arm.engine is self._setup.reference:
            # Planted faults are in the engine under test, never in what it is held against.
            setup = replace(setup, request=replace(setup.request, faults=()))
        shelf = self._shelves[arm.name]
        seed = self._plan.seed * SEEDS_PER_PLAN + number * len(self._names) + self._names.index(arm.name)
        starter = Starter(setup, shelf, launch_seed=seed)
        crowded = self._plan.together and arm.engine.kind == "gpu"
        # A slow CPU meets both arms, whose runs interleave: nothing is set aside for it.
        measurer = Measurer(setup, shelf, starter, beside=beside, crowded=crowded, patience=0)
        return _Rig(arm, starter, measurer)

    def _judge(self, ends: Mapping[str, Sequence[Teardown]]) -> None:
        """A server that would not end is a hang; what it left behind is said."""
        for name, teardown in ((name, item) for name, group in ends.items() for item in group):
            if teardown.hang is not None:
                raise ArmFailed(name, teardown.hang)
            if teardown.killed:
                self.remarks.append(f"processes left behind were killed: {', '.join(teardown.killed)}")
            if teardown.holders:
                self.remarks.append(f"not given back after an engine's end: {', '.join(teardown.holders)}")


class _Rig:
    """One arm's server in one block."""

    def __init__(self, arm: Arm, starter: Starter, measurer: Measurer) -> None:
        self.arm = arm
        self.measurer = measurer
        self._pool = Pool(1, starter)

    def start(self) -> None:
        self._pool.get(self.arm.profile)

    @property
    def server(self) -> Server:
        return self._pool.get(self.arm.profile)

    def stop(self) -> list[Teardown]:
        self._pool.close()
        self.measurer.close()
        return list(self._pool.teardowns.values())


class _Launched:
    """Satisfies :class:`tokgate.gate.blocks.bench.Launched`."""

    def __init__(self, rigs: Mapping[str, _Rig], extras: Extras | None) -> None:
        self._rigs = rigs
        self._extras = extras
        self._started: dict[str, Started] = {}

    def startup(self, arm: str) -> Measured:
        rig = self._rigs[arm]
        started = self._started[arm] = rig.measurer.startup(rig.server, rig.arm.profile)
        return Measured((started.sample,), (), (started.file,))

    def runs(self, arm: str, workload: Workload) -> Runs:
        rig = self._rigs[arm]
        return rig.measurer.runs(rig.server, rig.arm.profile, workload)

    def extras(self, arm: str) -> Mapping[str, object]:
        if self._extras is None:
            return {}
        rig = self._rigs[arm]
        return self._extras(rig.arm, rig.server, self._started[arm])


def _all_of(tasks: Mapping[str, Callable[[], T]]) -> list[T]:
    """Do all at the same time, by name of the arm; when all have ended, the first fault goes through."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        futures = {name: pool.submit(task) for name, task in tasks.items()}
    for name, future in futures.items():
        error = future.exception()
        if isinstance(error, TokgateError):
            raise ArmFailed(name, error)
    return [future.result() for future in futures.values()]
