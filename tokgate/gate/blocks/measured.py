"""What one block of launches brought, arm by arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokgate.gate.runs import Measured


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
