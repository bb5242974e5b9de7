"""Blocks: launches of several arms side by side, their runs interleaved, stored one by one.

A block is the unit of every claim about a build (docs/decisions/block-difference.md). This module measures
blocks and keeps them; it knows nothing of decisions (see :mod:`tokgate.gate.blocks.deciding`)::

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
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tokgate.analysis.voids import SOFT_CAUSES
from tokgate.config.workloads import Workload
from tokgate.errors import TokgateError
from tokgate.gate.blocks.bench import ArmFailed, Bench, CountedRuns, Launched
from tokgate.gate.blocks.journal import Journal
from tokgate.gate.blocks.measured import MeasuredArm, MeasuredBlock
from tokgate.gate.blocks.plan import Arm, BlockPlan
from tokgate.gate.runs import Measured
from tokgate.gate.start import STARTUP
from tokgate.gate.watch import Blind
from tokgate.load.sample import Sample

__all__ = [
    "Arm",
    "ArmFailed",
    "Bench",
    "BlockPlan",
    "BlockRunner",
    "Launched",
    "MeasuredArm",
    "MeasuredBlock",
]


class BlockRunner:
    """Measures the blocks of one plan. Not thread-safe.

    Attributes:
        plan: what is measured.
        blocks: all blocks so far, those of earlier calls included.
        failed: name of the arm whose server raised what :meth:`measure` let through, if one did.

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
        self.failed: str | None = None
        self._bench = bench
        self._clock = clock
        self._journal = None if folder is None else Journal(folder, plan.facts())
        self.blocks: list[MeasuredBlock] = [] if self._journal is None else self._journal.take_up()

    @property
    def next_s(self) -> float:
        """Seconds that the next block may take: the longest so far; 0 when none was measured yet.

        The first block compiles kernels that the later ones find: it counts only while there is no other.
        """
        seconds = [block.seconds for block in self.blocks]
        return max(seconds[1:] or seconds, default=0.0)

    @property
    def _free(self) -> int:
        """Number of the next block: the lowest that none has."""
        taken = {block.number for block in self.blocks}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def measure(self, workloads: Collection[str] | None = None) -> MeasuredBlock:
        """Measure one more block and keep it.

        Args:
            workloads: names of those to be measured; all when not given. Where some are decided, a block
                goes on with the rest.

        Raises:
            TokgateError: what a start or a run raised. The block under way is lost, its Samples are not.
            ValueError: none of the plan's workloads is asked for.
        """
        number = self._free
        asked = [w for w in self.plan.workloads if workloads is None or w.name in workloads]
        if not asked:
            raise ValueError(f"none of the planned workloads is among {sorted(workloads or ())}")
        arms = {arm.name: arm for arm in self.plan.arms}
        in_order = [arms[name] for name in self.plan.launch_order(number)]
        began_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        began_s = self._clock()
        found: dict[str, MeasuredArm] = {}
        for group in [in_order] if self.plan.together else [[arm] for arm in in_order]:
            try:
                found |= self._launch(number, group, asked)
            except ArmFailed as failed:
                self.failed = failed.arm
                raise failed.fault from failed.fault.__cause__
        orders = {w.name: self.plan.run_order(number, w.name) for w in asked}
        seconds = self._clock() - began_s
        block = MeasuredBlock(number, began_at, seconds, orders, {name: found[name] for name in arms})
        if self._journal is not None:
            self._journal.add(block)
        self.blocks.append(block)
        return block

    def launches(self, arm: str, workload: str, metric: str) -> list[list[float]]:
        """Runs of a metric by block, of the blocks that have it on every arm; paired across arms.

        A value of 0 is no measurement (the median gap of a run whose steps mostly came in merged reads) and
        is left out.
        """
        return [
            _told(block.arms[arm].workloads[workload], metric)
            for block in self.blocks
            if all(
                workload in side.workloads and _told(side.workloads[workload], metric)
                for side in block.arms.values()
            )
        ]

    @property
    def remarks(self) -> list[str]:
        """What a reader should know beside the figures: what stored blocks were taken up, how servers ended, what
        nobody could watch, and what met runs that count."""
        stored = [] if self._journal is None else self._journal.remarks
        return [*stored, *dict.fromkeys(self._bench.remarks), *self.blind().remarks(), *self._slowed()]

    def blind(self) -> Blind:
        """What no run of the blocks so far, void ones included, could have been void by."""
        found = Blind(self.plan.arms[0].engine.kind)
        for runs in self._runs().values():
            for sample in runs:
                found.add(sample)
        return found

    def _slowed(self) -> list[str]:
        """Runs whose scheduler had a slow CPU for which the GPU waited, by arm; nothing where none had."""
        found = {
            name: sum(any(a.cause in SOFT_CAUSES for a in sample.advisory) for sample in runs)
            for name, runs in self._runs().items()
        }
        if not any(found.values()):
            return []
        of = {name: len(runs) for name, runs in self._runs().items()}
        told = ", ".join(f"{count} of {of[name]} runs of arm {name}" for name, count in found.items())
        return [f"slow_cpu: {told}; runs of the arms interleave"]

    def _runs(self) -> dict[str, list[Sample]]:
        """All runs of workloads so far, void ones included, by arm."""
        found: dict[str, list[Sample]] = {arm.name: [] for arm in self.plan.arms}
        for name, arm in (pair for block in self.blocks for pair in block.arms.items()):
            for workload, measured in arm.workloads.items():
                if workload != STARTUP:
                    found[name] += [*measured.samples, *measured.void]
        return found

    def _launch(self, number: int, arms: Sequence[Arm], asked: Sequence[Workload]) -> dict[str, MeasuredArm]:
        names = [arm.name for arm in arms]
        found: dict[str, dict[str, Measured]] = {name: {} for name in names}
        extras: dict[str, Mapping[str, object]] = {}
        with self._bench.launch(number, arms) as launched:
            for name in names:
                with _of(name):
                    found[name][STARTUP] = launched.startup(name)
            for workload in asked:
                order = [name for name in self.plan.run_order(number, workload.name) if name in names]
                runs: dict[str, CountedRuns] = {}
                for name in dict.fromkeys(order):
                    with _of(name):
                        runs[name] = launched.runs(name, workload)
                for name in order:
                    with _of(name):
                        runs[name].one()
                for name in names:
                    found[name][workload.name] = runs[name].measured
            for name in names:
                with _of(name):
                    extras[name] = launched.extras(name)
        return {name: MeasuredArm(found[name], extras[name]) for name in names}


def _told(measured: Measured, metric: str) -> list[float]:
    return [value for value in measured.series(metric) if value > 0]


@contextmanager
def _of(arm: str) -> Iterator[None]:
    """Whatever fails inside is of this arm."""
    try:
        yield
    except TokgateError as fault:
        raise ArmFailed(arm, fault) from fault
