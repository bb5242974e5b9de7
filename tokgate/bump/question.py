"""What a bump is asked, and what is known of the noise before it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tokgate.analysis.looks import History, Plan
from tokgate.config.document import nearest
from tokgate.config.engine import Engine, EngineKind
from tokgate.config.gate import GateFile, Limit
from tokgate.config.profiles import Profile
from tokgate.config.workloads import Workload
from tokgate.errors import UsageFault
from tokgate.gate.blocks.deciding import Question
from tokgate.gate.start import STARTUP

Pairing = Literal["all", "pair", "apart"]
"""Which servers are up at once: both versions of all profiles, both versions of one, or one server."""

STARTUP_METRIC = "startup_s"
ACCEPT_LENGTH = "accept_length"
EXACT = frozenset({ACCEPT_LENGTH})
"""Metrics that are counted, not tested over blocks."""

MEASURED = frozenset(
    {
        *(
            f"{name}_p{share}"
            for name in ("ttft_s", "e2e_s", "queue_s", "step_ms", "tpot_ms")
            for share in (50, 99)
        ),
        "request_per_s",
        "output_tok_s",
        "output_tok_s_steady",
        "decode_tok_s",
        "peak_tok_s",
        "goodput_request_per_s",
        "goodput_share",
        "tokens_per_step",
        "step_ms_mean",
        "tpot_ms",
        "accept_length",
        "cycle_ms",
        "cached_share",
    }
)
"""What the client measures of a run (:func:`tokgate.load.metrics.metrics`)."""

PHASES = frozenset({"spawn", "imports", "weights", "kv_cache", "setup", "warmup", "first_token"})
OF_READY = frozenset({"gpu_memory_mib", "graphs_gb", "kv_cache_tokens"})
"""Memory of a server that is ready: no run of a workload has it (:func:`tokgate.gate.watch.memory`)."""

Histories = Mapping[tuple[str, str, str], History]
"""(profile, workload, metric) -> what calibration knows of it."""


@dataclass(frozen=True, slots=True)
class BumpAsk:
    """What is asked; equal asks of equal seeds measure the same blocks in the same order.

    Attributes:
        old, new: engines; the same one twice is an A/A.
        metrics: gated ones, with their limits; without those of the start.
        blocks_max: blocks a profile at most.
        runs_per_arm: runs of each workload on each launch.
        histories: scatter known from calibration.
    """

    old: Engine
    new: Engine
    profiles: tuple[Profile, ...]
    workloads: tuple[Workload, ...]
    metrics: tuple[str, ...]
    gate: GateFile
    seed: int
    pairing: Pairing = "pair"
    blocks_max: int = 40
    runs_per_arm: int = 4
    histories: Histories = field(default_factory=dict)

    @property
    def alpha(self) -> float:
        """Chance of a false REGRESSION allowed to each verdict over blocks, start-up included."""
        count = len(self.profiles) * (len(self.workloads) * len(self.tested) + self._startup_is_gated)
        return self.gate.statistics.alpha / max(1, count)

    @property
    def tested(self) -> list[str]:
        """Metrics that are judged over blocks; the others are counted in them."""
        return [metric for metric in self.metrics if metric not in EXACT]

    def questions(self, profile: str) -> list[Question]:
        """What the blocks of a profile must answer before its blocks end."""
        return [
            self._question(profile, workload.name, metric)
            for workload in self.workloads
            for metric in self.tested
        ]

    def startup_question(self, profile: str) -> Question | None:
        """Start-up time; judged from whatever blocks there are, none is measured for it."""
        if not self._startup_is_gated:
            return None
        return self._question(profile, STARTUP, STARTUP_METRIC)

    @property
    def _startup_is_gated(self) -> bool:
        return self.gate.gated(STARTUP_METRIC, self.old.kind)

    def limit(self, metric: str) -> Limit:
        """The limit of a gated metric.

        Raises:
            UsageFault: gate.yaml does not gate it.
        """
        if metric not in self.gate.metrics:
            known = ", ".join(self.gate.metrics)
            raise UsageFault(f"gate.yaml has no metric '{metric}'", [f"metrics there: {known}"])
        return self.gate.metrics[metric]

    def _question(self, profile: str, workload: str, metric: str) -> Question:
        limit = self.limit(metric)
        plan = Plan(
            limit.limit_percent / 100,
            limit.better,
            self.alpha,
            self.gate.statistics.beta,
            self.blocks_max,
        )
        return Question(workload, metric, plan, self.histories.get((profile, workload, metric)))


def metrics_asked(gate: GateFile, names: Sequence[str], kind: EngineKind) -> tuple[str, ...]:
    """The metrics of workloads: those named, else all gated on a kind of engine; never those of the start.

    Raises:
        UsageFault: a name that is not gated on this kind of engine, or that belongs to the start.
    """
    known = [name for name in gate.metrics if gate.gated(name, kind) and not _of_start(name)]
    for name in names:
        if name not in known:
            raise UsageFault(
                f"--metrics: '{name}' is not gated of workloads on {kind} engines",
                [f"there is: {', '.join(known)}"],
            )
    return tuple(names or known)


def check_sought(metric: str, known: Sequence[str], profile: Profile) -> None:
    """Refuse a bisection by what no run of the workload will have, before hours are spent on it.

    Args:
        known: metrics of workloads that are gated on this kind of engine, and what else may be sought.

    Raises:
        UsageFault: names the metrics that can be had.
    """
    had = [m for m in known if profile.speculation is not None or not m.startswith("accept_")]
    if metric not in had:
        raise UsageFault(
            f"--metric {metric}: not measured in runs of a workload of profile {profile.name}",
            [f"there is: {', '.join(had)}"],
        )


def check_names(gate: GateFile, path: Path) -> None:
    """Refuse a gated metric that is a known one misspelled: it would be absent from every run.

    Raises:
        UsageFault: names the metric and the one that was meant.
    """
    for name in gate.metrics:
        if name in MEASURED or _of_start(name) or name.startswith("accept_share_pos"):
            continue
        hint = nearest(
            name, sorted({*MEASURED, *OF_READY, STARTUP_METRIC, *(f"{phase}_s" for phase in PHASES)})
        )
        raise UsageFault(f"{path}: metrics.{name}: no such metric; {hint}")


def _of_start(metric: str) -> bool:
    """Whether a launch tells it before its first workload: time of a phase, memory when ready."""
    return (
        metric in {STARTUP_METRIC, *OF_READY}
        or metric.removeprefix("draft_").removesuffix("_s") in PHASES
        or metric.startswith("capture:")
    )
