"""Settling: what one launch and stored figures leave open is decided by blocks, as far as a budget goes.

A build is held against a reference build, launched again and again beside it; a speculative profile against its
reference, so that the verdict covers what a launch does. See docs/decisions/settling.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tokgate.analysis.looks import Plan
from tokgate.config.profiles import Profile
from tokgate.config.workloads import Workload
from tokgate.errors import HostFault, TokgateError
from tokgate.gate.blocks import calibrations
from tokgate.gate.blocks.arms import ServerBench
from tokgate.gate.blocks.bench import Bench
from tokgate.gate.blocks.deciding import Deciding, Question, spend
from tokgate.gate.blocks.neighbours import side_by_side
from tokgate.gate.blocks.plan import RUNS_PER_ARM, Arm, BlockPlan
from tokgate.gate.blocks.runner import BlockRunner
from tokgate.gate.blocks.words import Answer, Claim, answered, ends_gain
from tokgate.gate.judge import Judge
from tokgate.gate.pairs import ATTENTION_MODE, GRAPHS
from tokgate.gate.setup import Setup
from tokgate.gate.visit import Visit
from tokgate.load.sample import Identity
from tokgate.verdict import Kind, Verdict

SETTLED = ("output_tok_s", "ttft_s_p50", "step_ms_p50")
"""Metrics whose verdicts on a build blocks can settle."""
LEFT_OPEN = (Kind.INCONCLUSIVE, Kind.MISSING)
"""Verdicts on a stored baseline that a reference build can settle: undecided, or nothing stored."""

MakeBench = Callable[[Setup, BlockPlan, Path], Bench]


@dataclass(frozen=True, slots=True)
class Asked:
    """One open verdict.

    Attributes:
        workload, metric: of what.
        identity: of the runs that were judged.
    """

    workload: str
    metric: str
    identity: Identity


class Budget:
    """Wall-clock time of a whole run for blocks, shared out over the profiles that may still want some.

    Args:
        minutes: in all.
        profiles: how many may ask.
    """

    def __init__(self, minutes: float, profiles: int) -> None:
        self._left_s = 60 * minutes
        self._profiles = profiles
        self._asked: set[str] = set()

    def share_minutes(self, profile: str) -> float:
        """What a profile may use now; what it leaves is for the others, and for what it asks later."""
        waiting = max(0, self._profiles - len(self._asked | {profile}))
        return self._left_s / 60 / (waiting + 1)

    def spent(self, profile: str, seconds: float) -> None:
        """Take off what a profile used."""
        self._left_s = max(0.0, self._left_s - seconds)
        self._asked.add(profile)


class Settling:
    """Decides open verdicts by blocks.

    Args:
        setup: the checked request; with a reference engine, builds are settled, without, profiles alone.
        folder: of the run; blocks go to ``blocks/`` below it.
        alpha: of each verdict.
        make_room: called before servers of blocks are started; stops all others on the GPU.
        bench: launches servers.
        clock: seconds, monotonic.

    Attributes:
        remarks: what a reader should know of the blocks, one line each.
    """

    def __init__(
        self,
        setup: Setup,
        folder: Path,
        *,
        alpha: float,
        make_room: Callable[[], object],
        bench: MakeBench = ServerBench,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert setup.request.budget_minutes is not None
        self.remarks: list[str] = []
        self._setup = setup
        self._folder = folder
        self._alpha = alpha
        self._make_room = make_room
        self._bench = bench
        self._clock = clock
        # Without a reference build only profiles that are held against another have anything to settle.
        traits = [()] if setup.reference else [("speculative",), (GRAPHS,), (ATTENTION_MODE,)]
        may_ask = {name for wanted in traits for name in setup.profile_names(*wanted)}
        self._budget = Budget(setup.request.budget_minutes, len(may_ask))
        self._done: dict[str, tuple[Deciding | None, tuple[str, ...]]] = {}
        self._remarks: dict[tuple[str, str, str], tuple[str, ...]] = {}

    def build(
        self, verdict: Verdict, asked: Asked, open_: Sequence[Asked], workloads: Sequence[Workload]
    ) -> Verdict:
        """The verdict on a build that the stored baseline left open, from blocks against the reference build.

        Args:
            verdict: INCONCLUSIVE.
            asked: what it is about.
            open_: everything of the profile that is open, ``asked`` included: one block serves all.
            workloads: that the blocks may measure.

        Raises:
            TokgateError: the candidate's server failed.
        """
        reference = self._setup.reference
        if reference is None:
            return verdict
        profile = self._setup.profiles[asked.identity.profile]
        arms = Arm("A", reference, profile), Arm("B", self._setup.engine, profile)
        said = (
            f"reference build {reference.name} (SGLang {reference.version}), launched again beside this one"
        )
        return self._settle(
            verdict, asked, open_, workloads, arms, f"build-{profile.name}", said, claim="build"
        )

    def profile(
        self, verdict: Verdict, asked: Asked, other: Profile, workloads: Sequence[Workload], claim: Claim
    ) -> Verdict:
        """The verdict on a profile against another that one launch a side left open.

        Args:
            verdict: INCONCLUSIVE.
            asked: what it is about.
            other: what the profile is held against: its reference, or the same but for one setting.
            claim: what is asked of the profile.

        Raises:
            TokgateError: the profile's server failed.
        """
        profile = self._setup.profiles[asked.identity.profile]
        arms = Arm("A", self._setup.engine, other), Arm("B", self._setup.engine, profile)
        said = f"'{other.name}', launched again beside '{profile.name}': the launch effect is covered"
        name = f"profile-{profile.name}-{other.name}-{asked.workload}"
        return self._settle(verdict, asked, [asked], workloads, arms, name, said, claim=claim)

    def _settle(
        self,
        verdict: Verdict,
        asked: Asked,
        open_: Sequence[Asked],
        workloads: Sequence[Workload],
        arms: tuple[Arm, Arm],
        name: str,
        said: str,
        *,
        claim: Claim,
    ) -> Verdict:
        if name not in self._done:
            self._done[name] = self._measure(open_, workloads, arms, name, calibrated=claim == "build")
        deciding, notes = self._done[name]
        notes = (*self._remarks.get((name, asked.workload, asked.metric), ()), *notes)
        found = None
        if deciding is not None:
            question = next(
                (q for q in deciding.questions if (q.workload, q.metric) == (asked.workload, asked.metric)),
                None,
            )
            found = None if question is None else deciding.decision(question)
        if deciding is None or found is None or question is None:
            return _with(
                verdict, notes or (f"no block has {asked.metric} of {asked.workload} on both sides",)
            )
        limit = self._setup.gate.metrics[self._limit_name(asked.metric)]
        return answered(
            Answer(verdict, deciding.runner, question, found, limit.unit, said, notes, claim, self._alpha)
        )

    def _measure(
        self,
        open_: Sequence[Asked],
        workloads: Sequence[Workload],
        arms: tuple[Arm, Arm],
        name: str,
        *,
        calibrated: bool,
    ) -> tuple[Deciding | None, tuple[str, ...]]:
        setup = self._setup
        launched, together = side_by_side(setup, arms)
        plan = BlockPlan(
            launched,
            tuple(workloads),
            seed=sum(self._folder.name.encode()) % 2**20,
            runs_per_arm=RUNS_PER_ARM,
            together=together,
        )
        folder = self._folder / "blocks" / name
        questions: list[Question] = []
        notes: list[str] = []
        for asked in open_:
            limit = setup.gate.metrics[self._limit_name(asked.metric)]
            history = None
            # Two profiles scatter otherwise than one against itself: they are judged without a history.
            if calibrated:
                history, remarks = calibrations.known(
                    setup.request.baselines, asked.identity, asked.metric, plan
                )
                self._remarks[name, asked.workload, asked.metric] = remarks
            test = Plan(limit.limit_percent / 100, limit.better, self._alpha, setup.gate.statistics.beta)
            questions.append(Question(asked.workload, asked.metric, test, history))
        began = self._clock()
        self._make_room()
        runner = BlockRunner(plan, self._bench(setup, plan, folder), folder, clock=self._clock)
        deciding = Deciding(runner, questions) if calibrated else Deciding(runner, questions, final=ends_gain)
        try:
            spent = spend(
                [deciding], minutes=self._budget.share_minutes(arms[1].profile.name), clock=self._clock
            )
            notes.append(
                f"{spent.blocks} blocks in {spent.seconds / 60:.1f} minutes: "
                f"{'decided' if spent.reason == 'decided' else f'stopped by the budget of {spent.reason}'}"
            )
        except TokgateError as fault:
            if runner.failed == arms[1].name and not isinstance(fault, HostFault):
                raise
            who = f"arm {runner.failed}" if runner.failed else "blocks"
            notes.append(f"{who} could not be measured: {fault.headline}")
        finally:
            self._budget.spent(arms[1].profile.name, self._clock() - began)
            self.remarks += [f"blocks of {name}: {remark}" for remark in runner.remarks]
        return (deciding if runner.blocks else None), tuple(dict.fromkeys(notes))

    def _limit_name(self, metric: str) -> str:
        """The metric of gate.yaml whose limit holds: speed between profiles is judged as throughput is."""
        return metric if metric in self._setup.gate.metrics else "output_tok_s"


def _with(verdict: Verdict, notes: Sequence[str]) -> Verdict:
    return Verdict(
        verdict.kind,
        verdict.subject,
        verdict.headline,
        (*verdict.body, *(f"blocks: {note}" for note in notes)),
        verdict.next_command,
        verdict.files,
        verdict.evidence,
    )


def open_questions(visit: Visit, workloads: Sequence[Workload], judge: Judge) -> list[Asked]:
    """What the stored baselines of a profile leave open, of every workload that could be measured."""
    found: list[Asked] = []
    for workload in workloads:
        with suppress(TokgateError):
            measured = visit.measured(workload)
            found += [
                Asked(workload.name, metric, measured.samples[0].identity)
                for metric in SETTLED
                if judge.gates(metric) and judge.against_baseline(measured, metric).kind in LEFT_OPEN
            ]
    return found
