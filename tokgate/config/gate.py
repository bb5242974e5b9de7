"""``gate.yaml``: limits, deadlines, how often to measure, what makes a run void. Units are in the names."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from tokgate.config.document import Document, Section
from tokgate.config.engine import EngineKind


class Limit(Section):
    """A gated metric: which direction is better, and the change that fails it, in percent.

    ``engines`` names the kinds of engine on which it is gated; empty: all.
    """

    unit: str
    better: Literal["higher", "lower"]
    limit_percent: float = Field(gt=0)
    engines: list[EngineKind] = []


class PhaseFloors(Section):
    """Shortest no-progress deadline of each start-up phase, seconds."""

    spawn_s: float = Field(default=30, gt=0)
    imports_s: float = Field(default=120, gt=0)
    weights_s: float = Field(default=120, gt=0)
    kv_cache_s: float = Field(default=60, gt=0)
    capture_s: float = Field(default=120, gt=0)
    warmup_s: float = Field(default=60, gt=0)
    first_token_s: float = Field(default=60, gt=0)


class Deadlines(Section):
    """No-progress deadlines. A phase's deadline is max(floor, factor x its usual time)."""

    usual_time_factor: float = Field(default=4, gt=1)
    floors: dict[EngineKind, PhaseFloors] = {}
    request_first_token_s: float = Field(default=60, gt=0)
    request_gap_s: float = Field(default=30, gt=0)
    request_total_s: float = Field(default=600, gt=0)
    teardown_s: float = Field(default=15, gt=0)


class Runs(Section):
    """How often a workload is measured on one launch."""

    warmup: int = Field(default=1, ge=0)
    measured: int = Field(default=5, ge=1)


class Statistics(Section):
    """Error rates of the decision. ``alpha`` is shared out over all verdicts of a run."""

    alpha: float = Field(default=0.01, gt=0, lt=0.5)
    beta: float = Field(default=0.05, gt=0, lt=0.5)


Cause = Literal[
    "client_lag",
    "client_run_delay",
    "client_cpu",
    "merged_reads",
    "unstamped_reads",
    "clock_step",
    "send_lag",
    "scheduler_run_delay",
    "steal",
    "gpu_power_throttle",
    "gpu_thermal_throttle",
    "foreign_gpu_process",
]
"""Causes of void runs that lie with the host or the client, never with what the server answered."""


class VoidBounds(Section):
    """Beyond these a run is void, by cause. Shares are of wall time or of reads.

    ``advisory_on`` names causes that are kept with the run but do not void it, by kind of engine.
    """

    scheduler_run_delay_share: float = Field(default=0.02, ge=0)
    steal_share: float = Field(default=0.02, ge=0)
    scheduler_cpu_slowdown: float = Field(default=1.1, ge=1)
    gpu_busy_share: float = Field(default=0.9, ge=0, le=1)
    max_void_runs: int = Field(default=3, ge=0)
    advisory_on: dict[EngineKind, list[Cause]] = {}


class ParitySizes(Section):
    """How long and how many the cases of greedy parity are, in tokens and requests."""

    prompt_tokens: int = Field(default=32, ge=4)
    new_tokens: int = Field(default=24, ge=2)
    long_context_tokens: int = Field(default=400, ge=16)
    many_prompts: int = Field(default=16, ge=2)


class GateFile(Section):
    """Schema of ``gate.yaml``."""

    metrics: dict[str, Limit]
    backstop_timeout_s: float = Field(default=3600, gt=0)
    runs: Runs = Runs()
    deadlines: Deadlines = Deadlines()
    statistics: Statistics = Statistics()
    void: VoidBounds = VoidBounds()
    parity: dict[EngineKind, ParitySizes] = {}

    def gated(self, metric: str, kind: EngineKind) -> bool:
        """Whether a metric is gated on a kind of engine."""
        limit = self.metrics.get(metric)
        return limit is not None and kind in (limit.engines or [kind])


def load_gate(path: Path) -> GateFile:
    """Read ``gate.yaml``.

    Raises:
        ConfigFault: every fault of the file, each with its line.
    """
    document = Document(path)
    document.plain_names("metrics")
    return document.validate(GateFile)
