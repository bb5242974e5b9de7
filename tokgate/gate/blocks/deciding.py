"""Deciding: blocks are measured until every verdict is reached, or the budget is spent.

The blocks come from :mod:`tokgate.gate.blocks.runner`, the statistics from :mod:`tokgate.analysis.sequential`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tokgate.analysis.blocks import differences, pair
from tokgate.analysis.decision import Decision
from tokgate.analysis.looks import BLOCKS_MIN_CHANGE, History, Plan
from tokgate.analysis.sequential import judge
from tokgate.gate.blocks.runner import BlockRunner


@dataclass(frozen=True, slots=True)
class Question:
    """One verdict to be reached.

    Attributes:
        workload, metric: of what; start-up times are metrics of the workload ``startup``.
        plan: limit, direction and error rates.
        history: scatter known from calibration, if it is.
    """

    workload: str
    metric: str
    plan: Plan
    history: History | None = None


class Deciding:
    """Questions about two arms of a runner's blocks.

    Args:
        runner: measures the blocks.
        questions: to be answered from them.
        reference, candidate: names of the arms.
        final: whether a decision ends its question; by default any that is not INCONCLUSIVE.
        least: blocks of every workload that are measured in any case, for what is observed without a question.
    """

    def __init__(
        self,
        runner: BlockRunner,
        questions: Sequence[Question],
        *,
        reference: str = "A",
        candidate: str = "B",
        final: Callable[[Decision], bool] = lambda decision: decision.kind != "INCONCLUSIVE",
        least: int = 0,
    ) -> None:
        self.runner = runner
        self._least = least
        self._final = final
        self.questions = tuple(questions)
        self._arms = reference, candidate
        self._judged: dict[Question, Decision] = {}
        self._answers: dict[Question, Decision] = {}

    def decision(self, question: Question) -> Decision | None:
        """What the blocks so far say; ``None`` when none of them has the metric on both arms.

        The first decision stands: a block that was measured for another question's sake cannot move it.
        """
        a, b = (self.runner.launches(arm, question.workload, question.metric) for arm in self._arms)
        if not a:
            return None
        found = differences(pair(a, b, question.plan.better))
        decision = self._answers.get(question)
        while decision is None or (decision.n < len(found) and self._is_open(question, decision)):
            n = 1 if decision is None else decision.n + 1
            decision = self._answers[question] = judge(found[:n], question.plan, question.history)
        return decision

    def _is_open(self, question: Question, decision: Decision) -> bool:
        return not self._final(decision) and decision.n < question.plan.blocks_max

    def decisions(self) -> dict[Question, Decision | None]:
        """Every question with its answer so far."""
        return {question: self.decision(question) for question in self.questions}

    def open(self) -> dict[str, int | None]:
        """Workloads with a question that is still open -> the fewest further blocks that may answer one.

        ``None`` where that cannot be told. A question on ``startup`` is answered by any block, and keeps
        the first workload open when nothing else is. Every workload while blocks are due in any case.
        """
        planned = [workload.name for workload in self.runner.plan.workloads]
        needed: dict[str, int | None] = {}
        if self._done < self._least:
            needed = dict.fromkeys(planned, self._least - self._done)
        for question, decision in self.decisions().items():
            done = 0 if decision is None else decision.n
            # A metric that no block has will not come with more of them.
            absent = decision is None and any(
                question.workload in self._measured(b) for b in range(self._done)
            )
            if absent or (decision is not None and not self._is_open(question, decision)):
                continue
            name = question.workload if question.workload in planned else planned[0]
            least = (
                max(1, BLOCKS_MIN_CHANGE - done) if decision is None or done < 2 else decision.blocks_needed
            )
            before = needed.get(name)
            needed[name] = least if before is None else before if least is None else min(before, least)
        return needed

    @property
    def _done(self) -> int:
        return len(self.runner.blocks)

    def _measured(self, number: int) -> Sequence[str]:
        return [name for arm in self.runner.blocks[number].arms.values() for name in arm.workloads]


@dataclass(frozen=True, slots=True)
class Spent:
    """How a budget was spent.

    Attributes:
        reason: ``decided``: no verdict is open; ``minutes``: the next block would not end in time;
            ``blocks``: the last block that the plans allow is in.
        seconds: of this call.
        blocks: measured in this call.
    """

    reason: Literal["decided", "minutes", "blocks"]
    seconds: float
    blocks: int


def spend(
    deciding: Sequence[Deciding],
    *,
    minutes: float | None = None,
    blocks_max: int = 40,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], object] = lambda line: None,
) -> Spent:
    """Measure blocks where a verdict is open, nearest to its decision first, until none is or the budget ends.

    Args:
        deciding: each with a runner of its own (one a profile, say).
        minutes: wall-clock budget; ``None`` for none. A block is begun only when one as long as the longest of
            its runner would end in time (the first, which compiles kernels, left out where there are others);
            the first block of each is always begun while time is left.
        blocks_max: of each runner, those of earlier calls included.
        clock: seconds, monotonic; virtual in simulations, the same as the runners'.
        say: told of each block, for a reader who waits.

    Raises:
        TokgateError: as :meth:`tokgate.gate.blocks.runner.BlockRunner.measure`.
    """
    began = clock()
    blocks = 0
    while True:
        waiting = [(item, found) for item in deciding if (found := item.open())]
        if not waiting:
            return Spent("decided", clock() - began, blocks)
        allowed = [(item, found) for item, found in waiting if len(item.runner.blocks) < blocks_max]
        if not allowed:
            return Spent("blocks", clock() - began, blocks)
        left = None if minutes is None else 60 * minutes - (clock() - began)
        affordable = [pair for pair in allowed if left is None or pair[0].runner.next_s < left]
        if not affordable:
            return Spent("minutes", clock() - began, blocks)
        item, found = min(affordable, key=lambda pair: _distance(*pair))
        block = item.runner.measure(found)
        blocks += 1
        say(
            f"block {block.number + 1} of {', '.join(arm.profile.name for arm in item.runner.plan.arms[:1])}: "
            f"{block.seconds:.0f} s; open: {', '.join(item.open()) or 'nothing'}"
        )


def _distance(deciding: Deciding, found: Mapping[str, int | None]) -> tuple[int, int]:
    """Order of spending: fewest further blocks first; those that cannot be foretold last, fewest done first."""
    known = [number for number in found.values() if number is not None]
    return min(known, default=1 << 30), len(deciding.runner.blocks)
