"""Blocks: launches of several arms side by side, their runs interleaved, stored one by one.

A block is the unit of every claim about a build (docs/decisions/block-difference.md). This module measures
blocks and keeps them; it knows nothing of decisions (see :mod:`tokgate.gate.deciding`)::

    plan = BlockPlan(arms=(Arm("A", old, profile), Arm("B", new, profile)), workloads=(chat,), seed=7)
    runner = BlockRunner(plan, ServerBench(setup, plan, folder), folder)   # takes up what the folder holds
    runner.measure()                                                       # one more block
    runner.launches("A", "chat-bs8", "output_tok_s")                       # [[812.1, ...], ...] by block

::

    <folder>/plan.json           what is measured; another plan in the same folder is refused
    <folder>/blocks/0000.json    one file a block, written when the whole block is measured
    <folder>/A/samples, A/logs   of arm A, as in a run of the gate
    <folder>/lost/               Samples of a block that a crash cut short
"""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tokgate.config.engine import Engine
from tokgate.config.profiles import Profile
from tokgate.config.workloads import Workload
from tokgate.gate.journal import Journal
from tokgate.gate.measurement import Measured
from tokgate.gate.start import STARTUP

RUNS_PER_ARM = 4


@dataclass(frozen=True, slots=True)
class Arm:
    """One build, or one profile, that is measured against the others of its block.

    Attributes:
        name: ``A``, ``B``, ...; by convention ``A`` is the reference. Names a folder.
        engine: starts its servers.
        profile: what they run.
    """

    name: str
    engine: Engine
    profile: Profile


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """What every block measures. The same plan gives the same orders, whenever it is taken up.

    Attributes:
        arms: two or more, of different names. A/A calibration: twice the same engine and profile.
        workloads: measured one after the other while the servers are up.
        runs_per_arm: runs that count, of each workload on each arm.
        together: all servers of a block are up at once and their runs interleave; else each arm has
            the GPU for itself, one after the other, and a block balances nothing within itself.
        seed: of the orders, and of an emulated engine's launches; below 2**20.
    """

    arms: tuple[Arm, ...]
    workloads: tuple[Workload, ...]
    seed: int
    runs_per_arm: int = RUNS_PER_ARM
    together: bool = True

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(names) < 2 or len(set(names)) < len(names) or not all(name.isidentifier() for name in names):
            raise ValueError(f"a block has two or more arms, each with a name of its own, not {names}")
        if self.runs_per_arm < 1 or not self.workloads or not 0 <= self.seed < 2**20:
            raise ValueError("a block has workloads, runs, and a seed of 20 bits")

    def launch_order(self, number: int) -> tuple[str, ...]:
        """Names of the arms in the order in which block ``number`` launches them."""
        return tuple(self._shuffled(number, "launch"))

    def run_order(self, number: int, workload: str) -> tuple[str, ...]:
        """Names of the arms, once for each run of a workload in block ``number``.

        ABBA BAAB ... or BAAB ABBA ...: neither a drift that is steady over the block nor one that bends
        favours an arm. Where arms are not up together: all runs of one, then all of the next.
        """
        if not self.together:
            return tuple(name for name in self.launch_order(number) for _ in range(self.runs_per_arm))
        forth = self._shuffled(number, workload)
        back = forth[::-1]
        # Of four half rounds: forth, back, back, forth.
        halves = (forth, back, back, forth)
        return tuple(name for half in range(self.runs_per_arm) for name in halves[half % 4])

    def _shuffled(self, number: int, what: str) -> list[str]:
        names = [arm.name for arm in self.arms]
        random.Random(f"{self.seed}/{number}/{what}").shuffle(names)
        return names

    def facts(self) -> dict[str, object]:
        """JSON values that say what is measured; equal for equal plans."""
        return {
            "arms": [
                {
                    "name": arm.name,
                    "engine": arm.engine.name,
                    "kind": arm.engine.kind,
                    "sglang": arm.engine.version,
                    "lock_digest": arm.engine.lock_digest,
                    "profile": arm.profile.name,
                    "profile_digest": arm.profile.digest,
                }
                for arm in self.arms
            ],
            "workloads": {workload.name: workload.digest for workload in self.workloads},
            "runs_per_arm": self.runs_per_arm,
            "together": self.together,
            "seed": self.seed,
        }


class Runs(Protocol):
    """Runs of one workload on one server; made when the warm-up is done."""

    def one(self) -> object:
        """Measure one run that counts: a void one is stored and repeated, within the bound of gate.yaml.

        Raises:
            TokgateError: as :meth:`tokgate.gate.measurement.Measurer.workload`.
        """
        ...

    @property
    def measured(self) -> Measured:
        """All runs so far, void ones apart. Files are below the folder of the blocks, if there is one."""
        ...


class Launched(Protocol):
    """Servers of some arms, up and ready."""

    def startup(self, arm: str) -> Measured:
        """The start of an arm's server, as one run of the workload ``startup``."""
        ...

    def runs(self, arm: str, workload: Workload) -> Runs:
        """Warm a workload up on an arm's server."""
        ...

    def extras(self, arm: str) -> Mapping[str, object]:
        """What else the caller wants to know of an arm's server, JSON values; kept with the block."""
        ...


class Bench(Protocol):
    """Launches servers to measure on. The real one is :class:`tokgate.gate.arms.ServerBench`."""

    def launch(self, number: int, arms: Sequence[Arm]) -> AbstractContextManager[Launched]:
        """Start the arms' servers at the same time, for block ``number``; leaving it stops them all.

        Raises:
            TokgateError: a server did not start, or did not end; all others are stopped.
        """
        ...


@dataclass(frozen=True, slots=True)
class MeasuredArm:
    """One arm of a block.

    Attributes:
        workloads: what was measured, by name of the workload; the start as ``startup``.
        extras: see :meth:`Launched.extras`.
    """

    workloads: Mapping[str, Measured]
    extras: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeasuredBlock:
    """One block.

    Attributes:
        number: from 0.
        began_at: UTC, ISO 8601.
        seconds: from the launch to the end of the last server.
        orders: arms in the order of their runs, by workload.
        arms: by name.
    """

    number: int
    began_at: str
    seconds: float
    orders: Mapping[str, tuple[str, ...]]
    arms: Mapping[str, MeasuredArm]


class BlockRunner:
    """Measures the blocks of one plan. Not thread-safe.

    Attributes:
        plan: what is measured.
        blocks: all blocks so far, those of earlier calls included.

    Args:
        bench: launches servers.
        folder: where blocks are kept, and taken up from; ``None`` keeps them in memory alone.
        clock: seconds, monotonic; virtual in simulations.

    Raises:
        UsageFault: the folder holds another plan.
        SampleFault: a stored block or one of its Samples cannot be read.
        ResultsUnwritable: the folder cannot be written.
    """

    def __init__(
        self,
        plan: BlockPlan,
        bench: Bench,
        folder: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self._bench = bench
        self._clock = clock
        self._journal = None if folder is None else Journal(folder, plan.facts())
        self.blocks: list[MeasuredBlock] = [] if self._journal is None else self._journal.take_up()

    def measure(self, workloads: Collection[str] | None = None) -> MeasuredBlock:
        """Measure one more block and keep it.

        Args:
            workloads: names of those to be measured; all when not given. Where some are decided, a block
                goes on with the rest.

        Raises:
            TokgateError: what a start or a run raised. The block under way is lost, its Samples are not.
            ValueError: none of the plan's workloads is asked for.
        """
        number = len(self.blocks)
        asked = [w for w in self.plan.workloads if workloads is None or w.name in workloads]
        if not asked:
            raise ValueError(f"none of the planned workloads is among {sorted(workloads or ())}")
        arms = {arm.name: arm for arm in self.plan.arms}
        in_order = [arms[name] for name in self.plan.launch_order(number)]
        began_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        began_s = self._clock()
        found: dict[str, MeasuredArm] = {}
        for group in [in_order] if self.plan.together else [[arm] for arm in in_order]:
            found |= self._launch(number, group, asked)
        orders = {w.name: self.plan.run_order(number, w.name) for w in asked}
        seconds = self._clock() - began_s
        block = MeasuredBlock(number, began_at, seconds, orders, {name: found[name] for name in arms})
        if self._journal is not None:
            self._journal.add(block)
        self.blocks.append(block)
        return block

    def launches(self, arm: str, workload: str, metric: str) -> list[list[float]]:
        """Runs of a metric by block, of the blocks that have it on every arm; paired across arms."""
        return [
            block.arms[arm].workloads[workload].series(metric)
            for block in self.blocks
            if all(
                workload in side.workloads and side.workloads[workload].series(metric)
                for side in block.arms.values()
            )
        ]

    def _launch(self, number: int, arms: Sequence[Arm], asked: Sequence[Workload]) -> dict[str, MeasuredArm]:
        names = {arm.name for arm in arms}
        found: dict[str, dict[str, Measured]] = {name: {} for name in names}
        extras: dict[str, Mapping[str, object]] = {}
        with ExitStack() as stack:
            launched = stack.enter_context(self._bench.launch(number, arms))
            for name in names:
                found[name][STARTUP] = launched.startup(name)
            for workload in asked:
                order = [name for name in self.plan.run_order(number, workload.name) if name in names]
                runs = {name: launched.runs(name, workload) for name in dict.fromkeys(order)}
                for name in order:
                    runs[name].one()
                for name in names:
                    found[name][workload.name] = runs[name].measured
            extras = {name: launched.extras(name) for name in names}
        return {name: MeasuredArm(found[name], extras[name]) for name in names}
