"""A bench whose servers are numbers, on a clock of its own, and the real one on the emulator."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tokgate.config.engine import emulated_engine
from tokgate.config.profiles import load_profiles
from tokgate.config.workloads import Workload, load_workloads
from tokgate.gate.blocks.plan import Arm, BlockPlan
from tokgate.gate.results import Shelf
from tokgate.gate.runs import Measured, Runs
from tokgate.gate.setup import Request, Setup, read
from tokgate.load.sample import Audit, Identity, Sample, Void

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "perf_tests"


@dataclass
class VirtualBench:
    """Servers that run at a speed of their own.

    Attributes:
        speed: arm and number of the block -> tok/s of that launch.
        run_sd: scatter of runs, log scale.
        folder: Samples are stored below it; kept in memory when ``None``.
        now_s: the virtual clock.
        log: what was done, in order.
        before_run: called before each run with (block, arm); may raise.
        void: reasons against the runs of an arm.
    """

    speed: Callable[[str, int], float]
    run_sd: float = 0.0
    folder: Path | None = None
    run_s: float = 5.0
    start_s: float = 60.0
    now_s: float = 0.0
    log: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    before_run: Callable[[int, str], None] = lambda number, arm: None
    void: Callable[[str], tuple[Void, ...]] = lambda arm: ()

    def clock(self) -> float:
        return self.now_s

    @contextmanager
    def launch(self, number: int, arms: Sequence[Arm]) -> Iterator[_Launched]:
        self.now_s += self.start_s
        self.log.append(f"start {'+'.join(arm.name for arm in arms)}")
        try:
            yield _Launched(self, number)
        finally:
            self.log.append(f"stop {'+'.join(arm.name for arm in arms)}")


class _Launched:
    def __init__(self, bench: VirtualBench, number: int) -> None:
        self._bench = bench
        self._number = number
        self._random = random.Random(number)

    def startup(self, arm: str) -> Measured:
        sample = self._sample(arm, "startup", 0, {"startup_s": self._bench.start_s})
        return Measured((sample,), (), (self._store(arm, sample),))

    def runs(self, arm: str, workload: Workload) -> Runs:
        def measure(number: int) -> Sample:
            self._bench.before_run(self._number, arm)
            self._bench.now_s += self._bench.run_s
            self._bench.log.append(f"run {arm}")
            speed = self._bench.speed(arm, self._number) * (1 + self._random.gauss(0, self._bench.run_sd))
            sample = self._sample(arm, workload.name, number, {"output_tok_s": speed})
            return replace(sample, void=self._bench.void(arm))

        return Runs(
            measure, lambda s: self._store(arm, s), bound=0, subject=("p", workload.name, Path("none.log"))
        )

    def extras(self, arm: str) -> Mapping[str, object]:
        return {"arm": arm}

    def _store(self, arm: str, sample: Sample) -> Path:
        if self._bench.folder is None:
            return Path("nowhere")
        return Shelf(self._bench.folder / arm).add_sample(sample)

    def _sample(self, arm: str, workload: str, run: int, metrics: Mapping[str, float]) -> Sample:
        identity = Identity(
            engine="emulated",
            engine_name="virtual",
            sglang_version="0",
            host_class="virtual",
            profile="baseline",
            profile_digest="p",
            workload=workload,
            workload_digest="w",
            model="",
            launch=f"{arm}{self._number:04d}{len(self._bench.log):06d}"[:12],
            run=run,
            started_at="2026-01-01T00:00:00+00:00",
        )
        return Sample(identity, (), Audit("user"), dict(metrics), self._bench.run_s)


@pytest.fixture
def workloads() -> dict[str, Workload]:
    return dict(load_workloads(CONFIG / "workloads.yaml", "emulated").workloads)


@pytest.fixture
def plan(workloads: dict[str, Workload]) -> BlockPlan:
    """Two arms of the same engine and profile."""
    profile = load_profiles(CONFIG / "profiles.yaml").get("baseline")
    engine = emulated_engine("steady")
    return BlockPlan(
        (Arm("A", engine, profile), Arm("B", engine, profile)),
        (workloads["chat-bs1"],),
        seed=5,
        runs_per_arm=4,
    )


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """A checked request for the quick emulated engine."""
    found = read(
        Request(
            CONFIG,
            tmp_path / "results",
            tmp_path / "baselines",
            engine="emulated:steady",
            profiles=("baseline",),
            workloads=("chat-bs1",),
        )
    )
    return replace(found)
