"""Looks for a parity case on which two servers differ, and makes it small.

hypothesis draws the cases (prompts, lengths, shared prefixes, batch composition, sampling seeds), and once one
fails shrinks it as long as it goes on failing. Each case is asked on empty prefix caches, so that it depends
on nothing asked before it. Whether a difference is a tie is judged as in the gate: by the reference's own
candidates and its floor.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokgate.analysis.parity import Outcome, Output, ParityResult, compare
from tokgate.analysis.parity_case import Case, CaseRequest
from tokgate.errors import LoadFault, UsageFault
from tokgate.gate.parity import FIRST_ID, Answers, Server, as_a_reference

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

CONFIRMATIONS = 3
"""How often the smallest case is asked again at the end."""

PREFIX_SEED = 1 << 20

Known = Callable[[CaseRequest], list[int]]
"""The right output of a request, where it is known beforehand."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large cases may be, and how long the search.

    Attributes:
        prompt_tokens, new_tokens: of a request, at most.
        requests: of a case, at most.
        vocabulary: ids stay below it.
        examples: cases drawn before the search gives up; shrinking takes more.
        budget_s: then it ends with what it has.
        seed: of the draws.
    """

    prompt_tokens: int = 64
    new_tokens: int = 32
    requests: int = 8
    vocabulary: int = 1000
    examples: int = 100
    budget_s: float = 300.0
    seed: int = 0

    def check(self) -> None:
        """Raises :class:`UsageFault` for values that leave nothing to draw from."""
        for name in ("prompt_tokens", "new_tokens", "requests", "examples"):
            if getattr(self, name) < 1:
                raise UsageFault(f"{name.replace('_', ' ')} must be at least 1, got {getattr(self, name)}")
        if self.vocabulary <= FIRST_ID:
            raise UsageFault(f"vocabulary must be above {FIRST_ID}, got {self.vocabulary}")
        if not self.budget_s > 0:
            raise UsageFault(f"the budget must be above 0 s, got {self.budget_s:g}")


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to.

    Attributes:
        case: the smallest failing one; ``None`` when none failed.
        result: of that case.
        first: the case that failed first, before it was made small.
        again: how often of :data:`CONFIRMATIONS` it failed again; ``None`` when there was no time to see.
        examples: cases asked, those of shrinking included.
        ties: of all requests compared, how many differed by a tie.
        undecided: cases that could not be judged: the reference contradicts itself, or a gap is not known.
        in_time: the search ended by itself.
    """

    case: Case | None
    result: ParityResult | None
    first: Case | None
    again: int | None
    examples: int
    ties: int
    undecided: int
    in_time: bool


class _EndedError(BaseException):
    """Ends a search from within a case. Not an Exception: those hypothesis takes for failures to be shrunk."""


class Search:
    """One search.

    Args:
        reference, other: the two servers.
        limits: checked.
        known: gives right outputs; then the reference is held against them as well.
        on_example: called with the number of cases asked and the requests of the smallest failing one.
    """

    def __init__(
        self,
        reference: Server,
        other: Server,
        limits: Limits,
        known: Known | None = None,
        on_example: Callable[[int, Case | None], None] | None = None,
    ) -> None:
        limits.check()
        self._reference, self._other, self._limits, self._known = reference, other, limits, known
        self._on_example = on_example
        self._until_s = 0.0
        self._seen: dict[str, bool] = {}
        self._first: Case | None = None
        self._smallest: tuple[Case, ParityResult] | None = None
        self._examples = self._ties = self._undecided = 0
        self._cut = False
        self._fault: LoadFault | None = None

    def run(self) -> Found:
        """Search, make small, and ask the smallest again.

        Raises:
            UsageFault: hypothesis is not installed.
            LoadFault: a server does not answer; the case that it was asked is in the message.
        """
        self._until_s = time.monotonic() + self._limits.budget_s
        self._draw_and_shrink()
        if self._fault is not None:
            raise self._fault
        again = None
        if self._smallest is not None and time.monotonic() < self._until_s:
            again = sum(self._judge(self._smallest[0])[0] for _ in range(CONFIRMATIONS))
        case, result = self._smallest or (None, None)
        return Found(
            case, result, self._first, again, self._examples, self._ties, self._undecided, not self._cut
        )

    def _draw_and_shrink(self) -> None:
        try:
            import hypothesis
            from hypothesis.configuration import set_hypothesis_home_dir
            from hypothesis.errors import NoSuchExample
        except ImportError as error:
            raise UsageFault(
                "tokgate parity search needs hypothesis, which is not installed", ["pip install hypothesis"]
            ) from error
        settings = hypothesis.settings(
            max_examples=self._limits.examples,
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        )
        with tempfile.TemporaryDirectory() as home:
            set_hypothesis_home_dir(home)
            try:
                hypothesis.find(
                    strategy(self._limits),
                    self._fails,
                    settings=settings,
                    random=random.Random(self._limits.seed),
                )
            except (NoSuchExample, _EndedError):
                # None found; or it ended in between, and the smallest so far stands.
                pass
            finally:
                set_hypothesis_home_dir(None)

    def _fails(self, case: Case) -> bool:
        key = case.model_dump_json()
        if key not in self._seen:
            if time.monotonic() >= self._until_s:
                self._cut = True
                raise _EndedError
            try:
                failed, result = self._judge(case)
            except LoadFault as fault:
                self._fault = LoadFault(fault.headline, [*fault.details, f"asked: {words(case)}"])
                raise _EndedError from fault
            self._examples += 1
            self._seen[key] = failed
            if failed:
                self._first = self._first or case
                if self._smallest is None or size(case) < size(self._smallest[0]):
                    self._smallest = case, result
            if self._on_example is not None:
                self._on_example(self._examples, self._smallest and self._smallest[0])
        return self._seen[key]

    def _judge(self, case: Case) -> tuple[bool, ParityResult]:
        # A server held against itself cannot empty its cache while it answers.
        with ThreadPoolExecutor(1 if self._reference == self._other else 2) as pool:
            wanted, got = pool.map(lambda server: _answers(server, case), (self._reference, self._other))
        tokens = [request.new_tokens for request in case.requests]
        if self._known is not None:
            right = [Output(tuple(self._known(request))) for request in case.requests]
            astray = compare(right, wanted, None, wanted_tokens=tokens)
            if astray.failed:
                return True, astray
        result = compare(wanted, got, None, wanted_tokens=tokens)
        if not result.failed:
            return False, result
        reference = as_a_reference(self._reference, case, wanted)
        result = compare(reference.outputs, got, reference.floor, wanted_tokens=tokens)
        self._ties += result.count(Outcome.TIE)
        if _contradicts_itself(reference) or (not result.failed and result.count(Outcome.UNDECIDED)):
            self._undecided += 1
            return False, result
        return bool(result.failed), result


def _answers(server: Server, case: Case) -> list[Output]:
    server.flush()
    return server.answer(case)


def _contradicts_itself(reference: Answers) -> bool:
    return bool(compare(reference.outputs, reference.again, reference.floor).failed)


def size(case: Case) -> tuple[int, int, int]:
    """Smaller is easier to look at: requests, tokens of prompts, new tokens."""
    return (
        len(case.requests),
        sum(len(request.prompt_ids) for request in case.requests),
        sum(request.new_tokens for request in case.requests),
    )


def words(case: Case) -> str:
    """``2 requests, prompts of 3 and 1 tokens, 5 new tokens``."""
    prompts = [len(request.prompt_ids) for request in case.requests]
    many = len(prompts) > 1
    how = "" if not many else ", at once" if case.together else ", in turn"
    return (
        f"{len(prompts)} request{'s' * many}{how}, prompt{'s' * many} of {' and '.join(map(str, prompts))} "
        f"token{'s' * (prompts != [1])}, {max(r.new_tokens for r in case.requests)} new tokens"
    )


def strategy(limits: Limits) -> SearchStrategy[Case]:
    """Cases within the limits; hypothesis makes numbers smaller and lists shorter, so prompts are given by a
    length and a seed, not id by id."""
    from hypothesis import strategies as st

    request = st.tuples(
        st.integers(0, limits.prompt_tokens - 1),
        st.integers(1, limits.prompt_tokens),
        st.integers(0, 99),
        st.integers(1, limits.new_tokens),
        st.none() | st.integers(0, 9),
    )

    def case(drawn: tuple[bool, list[tuple[int, int, int, int, int | None]]]) -> Case:
        together, requests = drawn
        return Case(
            note="drawn by tokgate parity search",
            together=together,
            requests=[
                CaseRequest(
                    prompt_ids=[
                        *ids(PREFIX_SEED, shared, limits.vocabulary),
                        *ids(seed, min(own, limits.prompt_tokens - shared), limits.vocabulary),
                    ],
                    new_tokens=new,
                    sampling_seed=sampling,
                )
                for shared, own, seed, new, sampling in requests
            ],
        )

    return st.tuples(st.booleans(), st.lists(request, min_size=1, max_size=limits.requests)).map(case)


def ids(seed: int, count: int, vocabulary: int) -> list[int]:
    """The first ``count`` ids of a stream: a longer prompt of a seed begins with the shorter one."""
    stream = random.Random(seed)
    return [stream.randrange(FIRST_ID, vocabulary) for _ in range(count)]


def with_known(case: Case, known: Known | None) -> Case:
    """The case with right outputs, where they are known."""
    if known is None:
        return case
    return case.model_copy(update={"wanted_ids": [known(request) for request in case.requests]})
