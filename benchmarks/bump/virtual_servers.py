"""Servers that are numbers on a clock of their own: noise as recorded on the H200, speed by version, faults.

Satisfies :class:`tokgate.gate.blocks.bench.Bench`, so that what drives real servers drives these, in microseconds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bump import record
from benchmarks.decision.model import RECORDED
from tokgate.config.workloads import Workload
from tokgate.errors import Hang
from tokgate.gate.blocks.bench import ArmFailed
from tokgate.gate.blocks.runner import Arm, Bench, BlockPlan
from tokgate.gate.results import Shelf
from tokgate.gate.runs import Measured, Runs
from tokgate.load.sample import Audit, Identity, Sample

STOP_S = 5.0
HANG_S = 120.0


@dataclass(frozen=True, slots=True)
class Noise:
    """Servers of one model on the H200 host: how their speed scatters, and what their time costs.

    Attributes:
        launches: recorded runs of launches of one build, tok/s.
        start_s: of servers that start together, kernels compiled before.
        run_s: one run.
    """

    launches: Sequence[Sequence[float]]
    start_s: float
    run_s: float


def small() -> Noise:
    """The 1.1 B pair: five launches, 12 runs each; one of them is 19 % slower."""
    found: list[list[float]] = json.loads(RECORDED.read_text(encoding="utf-8"))["launches"]
    return Noise(found, start_s=65.0, run_s=1.1)


def large() -> Noise:
    """The 8 B pair: every launch of 0.5.13.post1 without a delay in the recorded bumps; two requests a run."""
    same = [
        launch
        for name, found in record.launches()
        if "baseline" in name
        for launch in found
        if launch["server"] in ("old_baseline", "again_baseline")
    ]
    speeds = [[float(run["output_tok_s"]) for run in launch["runs"] if not run["void"]] for launch in same]
    return Noise(speeds, start_s=58.0, run_s=5.0)


class Clock:
    """A clock that goes on when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class VirtualServers:
    """A bench without servers.

    Args:
        clock: goes on with every start and run.
        plan: of the blocks; its seed is the noise's.
        speed: factor on the speed of an SGLang version.
        hangs: versions whose start hangs.
        folder: Samples are stored below it; kept in memory when ``None``.
        noise: resampled, launch by launch and run by run.
        before: called before each start and each run; may raise.
    """

    def __init__(
        self,
        clock: Clock,
        plan: BlockPlan,
        *,
        speed: Mapping[str, float],
        hangs: Sequence[str] = (),
        folder: Path | None = None,
        noise: Noise,
        before: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.remarks: list[str] = []
        self.clock = clock
        self.plan = plan
        self.speed = speed
        self.hangs = hangs
        self.folder = folder
        self.noise = noise
        self.before = before

    @contextmanager
    def launch(self, number: int, arms: Sequence[Arm]) -> Iterator[_Launched]:
        """See :meth:`tokgate.gate.blocks.bench.Bench.launch`."""
        self.before(f"start {number}")
        self.clock.now_s += self.noise.start_s
        for arm in arms:
            if arm.engine.version in self.hangs:
                self.clock.now_s += HANG_S
                fault = Hang(
                    f"draft-extend graph capture: no progress for {HANG_S:.0f} s (limit {HANG_S:.0f} s)",
                    waited_s=HANG_S,
                    limit_s=HANG_S,
                    profile=arm.profile.name,
                    phase="capture:draft-extend",
                )
                raise ArmFailed(arm.name, fault)
        yield _Launched(self, number, arms)
        self.clock.now_s += STOP_S


class _Launched:
    def __init__(self, servers: VirtualServers, number: int, arms: Sequence[Arm]) -> None:
        self._servers = servers
        self._number = number
        self._arms = {arm.name: arm for arm in arms}
        engines = {arm.name: arm.engine.version for arm in servers.plan.arms}
        # The same block of the same plan draws the same noise, whenever it is measured.
        self._random = {
            name: random.Random(f"{servers.plan.seed}/{number}/{name}/{engines[name]}") for name in self._arms
        }
        self._level = {name: self._random[name].choice(servers.noise.launches) for name in self._arms}

    def startup(self, arm: str) -> Measured:
        seconds = self._servers.noise.start_s * self._random[arm].lognormvariate(0, 0.05)
        sample = self._sample(arm, "startup", 0, {"startup_s": seconds})
        return Measured((sample,), (), (self._store(arm, sample),))

    def runs(self, arm: str, workload: Workload) -> Runs:
        self._servers.clock.now_s += self._servers.noise.run_s
        factor = self._servers.speed.get(self._arms[arm].engine.version, 1.0)

        def measure(number: int) -> Sample:
            self._servers.before(f"run {self._number} {arm}")
            self._servers.clock.now_s += self._servers.noise.run_s
            speed = factor * self._random[arm].choice(self._level[arm])
            return self._sample(arm, workload.name, number, {"output_tok_s": speed})

        return Runs(
            measure, lambda s: self._store(arm, s), bound=0, subject=("p", workload.name, Path("none"))
        )

    def extras(self, arm: str) -> Mapping[str, object]:
        return {}

    def _store(self, arm: str, sample: Sample) -> Path:
        if self._servers.folder is None:
            return Path("nowhere")
        return Shelf(self._servers.folder / arm).add_sample(sample)

    def _sample(self, arm: str, workload: str, run: int, metrics: Mapping[str, float]) -> Sample:
        of = self._arms[arm]
        identity = Identity(
            engine="emulated",
            engine_name="virtual",
            sglang_version=of.engine.version,
            host_class="virtual-h200",
            profile=of.profile.name,
            profile_digest="p",
            workload=workload,
            workload_digest="w",
            model="",
            launch=f"{arm[:3]}{self._number:04d}",
            run=run,
            started_at="2026-01-01T00:00:00+00:00",
        )
        return Sample(identity, (), Audit("user"), dict(metrics), self._servers.noise.run_s)


def maker(
    clock: Clock,
    *,
    speed: Mapping[str, float],
    hangs: Sequence[str] = (),
    before: Callable[[str], None] = lambda what: None,
    noise: Noise | None = None,
) -> Callable[[BlockPlan, Path | None, object], Bench]:
    """Makes virtual benches for a campaign or a bisection.

    Args:
        noise: :func:`small` when not given.
    """
    chosen = noise or small()

    def make(plan: BlockPlan, folder: Path | None, sides: object) -> Bench:
        return VirtualServers(
            clock, plan, speed=speed, hangs=hangs, folder=folder, noise=chosen, before=before
        )

    return make
