"""One step of a bisection: a version against the good end, re-measured today, until it is plainly good or bad."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokgate.analysis.decision import Decision
from tokgate.analysis.looks import History, Plan
from tokgate.analysis.values import Better
from tokgate.bump.campaign import MakeBench
from tokgate.bump.search import Finding
from tokgate.bump.witness import Side
from tokgate.config.engine import Engine
from tokgate.config.profiles import Profile
from tokgate.config.workloads import Workload
from tokgate.errors import EngineFault, LoadFault, TokgateError, UsageFault
from tokgate.gate.blocks.deciding import Deciding, Question, spend
from tokgate.gate.blocks.runner import Arm, BlockPlan, BlockRunner
from tokgate.gate.words import count

FAILURE = "failure"
"""The metric of a bisection that seeks a hang or a crash."""

GOOD_ARM, ARM = "good", "candidate"
STEP_RATE = 0.01
"""Chance that a step takes a good version for bad, and a bad one for good."""

CAUTION = 0.75
"""Share of the endpoints' effect that a step must tell from none: an effect that was found is overrated by the
search for it, and one that grew in two stages is smaller at the first."""


@dataclass(frozen=True, slots=True)
class Sought:
    """What a bisection looks for.

    Attributes:
        metric: a gated metric, or :data:`FAILURE`.
        limit: a change that counts, as a fraction; of the endpoints at first.
        launches: a version that fails in none of so many launches is good (for :data:`FAILURE`).
    """

    metric: str
    better: Better
    limit: float
    profile: Profile
    workload: Workload
    runs_per_arm: int = 4
    blocks_max: int = 40
    launches: int = 3
    together: bool = True
    seed: int = 0
    history: History | None = None

    def facts(self) -> dict[str, object]:
        """JSON values that say what a finding answers; of blocks there may be more in a later call."""
        return {
            "metric": self.metric,
            "limit": self.limit,
            "profile": self.profile.name,
            "profile_digest": self.profile.digest,
            "workload": self.workload.name,
            "workload_digest": self.workload.digest,
            "runs_per_arm": self.runs_per_arm,
            "launches": self.launches,
            "together": self.together,
            "seed": self.seed,
        }


@dataclass(frozen=True, slots=True)
class Step:
    """What was found of one version.

    Attributes:
        why: one line.
        change_percent, interval_percent: of the metric against the good end; ``None`` without figures.
    """

    version: str
    finding: Finding
    why: str
    blocks: int
    seconds: float
    change_percent: float | None = None
    interval_percent: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        return asdict(self)


class OutOfBudget(Exception):
    """The budget ended within a step, which goes on from its blocks when taken up again."""


class Prober:
    """Judges versions. What it measures is kept, and taken up from, a folder a version.

    Args:
        sought: what is looked for.
        good: the good end.
        engine_of: makes or finds the engine of a version.
        make_bench: gives servers, or a simulation of them.
        folder: ``None`` keeps nothing.
        clock: seconds, monotonic.
        minutes: GPU minutes of this call, over all steps; ``None`` for no bound.
    """

    def __init__(
        self,
        sought: Sought,
        good: Engine,
        engine_of: Callable[[str], Engine],
        make_bench: MakeBench,
        folder: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        minutes: float | None = None,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._sought = sought
        self._good = good
        self._engine_of = engine_of
        self._make_bench = make_bench
        self._folder = folder
        self._clock = clock
        self._until = None if minutes is None else clock() + 60 * minutes
        self._say = say
        self._began_s = self._before_s = 0.0

    def probe(self, version: str, limit: float) -> Step:
        """Judge one version.

        Args:
            limit: the change that is told from none, as a fraction.

        Raises:
            OutOfBudget: the budget is spent before it is judged.
            TokgateError: the good end failed, or the host is unfit.
        """
        try:
            engine = self._engine_of(version)
        except UsageFault:
            raise
        except TokgateError as fault:
            # An environment that cannot be made says nothing of the engine's speed.
            return Step(version, "skip", f"no environment: {fault.headline}", 0, 0.0)
        self._began_s = self._clock()
        runner = self._runner(version, engine)
        self._before_s = sum(block.seconds for block in runner.blocks)
        deciding = Deciding(runner, [self._question(limit)], reference=GOOD_ARM, candidate=ARM)
        try:
            self._spend(deciding, runner)
        except (EngineFault, LoadFault) as fault:
            return self._failed(version, runner, fault)
        if self._sought.metric == FAILURE:
            return self._step(
                version, runner, "good", f"none of {count(len(runner.blocks), 'launch', 'launches')} failed"
            )
        decision = deciding.decision(deciding.questions[0])
        if decision is None:
            return self._step(version, runner, "skip", f"{self._sought.metric} is absent from every run")
        return self._judged(version, runner, decision)

    def _spend(self, deciding: Deciding, runner: BlockRunner) -> None:
        if self._sought.metric == FAILURE:
            while len(runner.blocks) < self._sought.launches:
                self._left()
                runner.measure()
            return
        left = self._left()
        spent = spend(
            [deciding],
            minutes=left,
            blocks_max=self._sought.blocks_max,
            clock=self._clock,
            say=self._say,
        )
        if spent.reason == "minutes":
            raise OutOfBudget

    def _left(self) -> float | None:
        """Minutes left; the budget of a launch that would not end within it is not known."""
        if self._until is None:
            return None
        left = (self._until - self._clock()) / 60
        if left <= 0:
            raise OutOfBudget
        return left

    def _judged(self, version: str, runner: BlockRunner, decision: Decision) -> Step:
        text = f"{self._sought.metric} {decision.change_text()} in {count(decision.n, 'block')}"
        finding: Finding = "skip"
        if decision.kind == "REGRESSION":
            finding = "bad"
        elif decision.kind in ("PASS", "IMPROVED"):
            finding = "good"
        else:
            text += ": undecided"
        return self._step(version, runner, finding, text, decision)

    def _failed(self, version: str, runner: BlockRunner, fault: TokgateError) -> Step:
        if runner.failed == GOOD_ARM:
            raise fault
        word = type(fault).__name__
        finding: Finding = "bad" if self._sought.metric == FAILURE else "skip"
        number = len(runner.blocks) + 1
        return self._step(version, runner, finding, f"{word} at launch {number}: {fault.headline}")

    def _step(
        self, version: str, runner: BlockRunner, finding: Finding, why: str, decision: Decision | None = None
    ) -> Step:
        interval = None if decision is None else decision.interval
        return Step(
            version,
            finding,
            why,
            len(runner.blocks),
            # A launch that failed is no block, and took its time all the same.
            self._before_s + self._clock() - self._began_s,
            None if decision is None else 100 * decision.change,
            None if interval is None else (100 * (interval[0] - 1), 100 * (interval[1] - 1)),
        )

    def _question(self, limit: float) -> Question:
        sought = self._sought
        metric = "output_tok_s" if sought.metric == FAILURE else sought.metric
        plan = Plan(limit, sought.better, STEP_RATE, STEP_RATE, max(3, sought.blocks_max))
        return Question(sought.workload.name, metric, plan, sought.history)

    def _runner(self, version: str, engine: Engine) -> BlockRunner:
        sought = self._sought
        plan = BlockPlan(
            (Arm(GOOD_ARM, self._good, sought.profile), Arm(ARM, engine, sought.profile)),
            (sought.workload,),
            sought.seed,
            1 if sought.metric == FAILURE else sought.runs_per_arm,
            together=sought.together,
        )
        sides: dict[str, tuple[str, Side]] = {
            GOOD_ARM: (sought.profile.name, "old"),
            ARM: (sought.profile.name, "new"),
        }
        folder = None if self._folder is None else self._folder / folder_name(version)
        return BlockRunner(plan, self._make_bench(plan, folder, sides), folder, clock=self._clock)


def folder_name(version: str) -> str:
    """A version as the name of a folder."""
    return re.sub(r"[^\w.+-]", "_", version)


def limit_of_steps(change: float, better: Better, least: float) -> float:
    """The change that steps tell from none, after the endpoints' was measured.

    Args:
        change: of the metric, as a fraction, at the bad end.
        least: never below this, as a fraction.
    """
    loss = -change if better == "higher" else change
    log_loss = CAUTION * (-math.log1p(-min(loss, 0.99)) if better == "higher" else math.log1p(loss))
    shrunk = -math.expm1(-log_loss) if better == "higher" else math.expm1(log_loss)
    return min(0.9, max(least, shrunk))
