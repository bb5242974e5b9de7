"""What measures a block: the form that the real bench and those of simulations have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from tokgate.config.workloads import Workload
from tokgate.errors import TokgateError
from tokgate.gate.blocks.plan import Arm
from tokgate.gate.runs import Measured


class ArmFailed(Exception):
    """An arm's server failed. A bench raises it, so that the runner can say which arm it was.

    Args:
        arm: its name.
        fault: what was raised.
    """

    def __init__(self, arm: str, fault: TokgateError) -> None:
        super().__init__(arm, fault)
        self.arm = arm
        self.fault = fault


class CountedRuns(Protocol):
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

    def runs(self, arm: str, workload: Workload) -> CountedRuns:
        """Warm a workload up on an arm's server."""
        ...

    def extras(self, arm: str) -> Mapping[str, object]:
        """What else the caller wants to know of an arm's server, JSON values; kept with the block."""
        ...


class Bench(Protocol):
    """Launches servers to measure on. The real one is :class:`tokgate.gate.blocks.arms.ServerBench`.

    Attributes:
        remarks: what a reader should know of how servers ended, one line each.
    """

    remarks: list[str]

    def launch(self, number: int, arms: Sequence[Arm]) -> AbstractContextManager[Launched]:
        """Start the arms' servers at the same time, for block ``number``; leaving it stops them all.

        Raises:
            ArmFailed: a server did not start, or did not end; all others are stopped.
        """
        ...
