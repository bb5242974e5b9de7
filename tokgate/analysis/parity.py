"""Greedy parity: do two servers give the same token ids, and if not, is it a tie, a bug, or a mix-up?

Pure functions on lists of token ids. A difference is forgiven only as a tie: at the first differing position
the reference's own two best log-probabilities lie closer than rounding can tell apart, and the other server
chose the second of them. The tolerance is not guessed: it comes from how far the reference's top-2 gaps move
when the same tokens go through other kernel shapes (decode against re-scored as a prompt, batch 1 against 8),
see :func:`measure_floor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tokgate.analysis.repetition import Repetition, find_repetition

FLOOR_FACTOR = 2.0
"""A tie may be this much wider than the largest change seen: the floor is the largest of a finite sample."""

SHORTEST_MATCH = 8
"""Tokens past the difference that must agree before an output is called another request's."""


class Outcome(StrEnum):
    """What a comparison of one request found, best first."""

    EQUAL = "equal"
    TIE = "tie"
    UNDECIDED = "undecided"
    DIVERGED = "diverged"
    TRUNCATED = "truncated"
    SWAPPED = "swapped"
    EMPTY = "empty"


FAILED = frozenset({Outcome.DIVERGED, Outcome.TRUNCATED, Outcome.SWAPPED, Outcome.EMPTY})


@dataclass(frozen=True, slots=True)
class TopTwo:
    """The reference's two best candidates at one position.

    Attributes:
        ids: best and second-best token id.
        logprobs: their log-probabilities, nats.
    """

    ids: tuple[int, int]
    logprobs: tuple[float, float]

    @property
    def gap(self) -> float:
        """Best minus second, nats."""
        return self.logprobs[0] - self.logprobs[1]


@dataclass(frozen=True, slots=True)
class Output:
    """One request's greedy output.

    Attributes:
        ids: generated token ids.
        top: position -> the two best candidates, where known; needed at the first difference only.
        stopped: the server ended the output by itself (end of sequence), so a shorter one is not cut short.
        verify_count: verify passes that the server reports; ``None`` without speculation.
        cached_tokens: prompt tokens that it served from its prefix cache; ``None`` where it does not say.
    """

    ids: tuple[int, ...]
    top: Mapping[int, TopTwo] | None = None
    stopped: bool = False
    verify_count: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Floor:
    """How far the top-2 gap at the same tokens moves between kernel shapes of the reference.

    Attributes:
        largest: largest change of a top-2 gap seen, nats.
        compared: how many gaps were compared.
    """

    largest: float
    compared: int

    @property
    def tolerance(self) -> float:
        """Widest gap that counts as a tie, nats."""
        return FLOOR_FACTOR * self.largest


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was found for one request.

    Attributes:
        request: its number in the batch.
        position: first differing output position, 0-based; ``None`` when equal.
        wanted, got: ids there; ``None`` past an output's end.
        gap: the reference's top-2 gap there, nats; ``None`` when not known.
        matches: for SWAPPED, the request whose output this one is.
        repetition: what the output repeats from the difference on.
        compared: positions compared up to the difference.
    """

    request: int
    outcome: Outcome
    compared: int
    position: int | None = None
    wanted: int | None = None
    got: int | None = None
    gap: float | None = None
    matches: int | None = None
    repetition: Repetition | None = None

    def line(self) -> str:
        """One line for reports."""
        head = f"request {self.request}: {self.outcome.value}"
        if self.outcome is Outcome.EQUAL:
            return f"{head}, {self.compared} tokens"
        if self.outcome is Outcome.EMPTY:
            return f"{head}: no tokens to compare"
        text = f"{head} at output token {self.position}: {_id(self.got)} for {_id(self.wanted)}"
        if self.gap is not None:
            text += f", reference's top-2 gap {self.gap:.4g} nats"
        if self.outcome is Outcome.UNDECIDED:
            text += ", reference's top-2 gap not known"
        if self.matches is not None:
            text += f"; it is the output of request {self.matches}"
        if self.repetition is not None:
            text += (
                f"; from token {self.repetition.start} on {list(self.repetition.block)} "
                f"repeated {self.repetition.times} times"
            )
        return text


@dataclass(frozen=True, slots=True)
class ParityResult:
    """All requests of a comparison.

    Attributes:
        tolerance: widest gap that counted as a tie, nats; ``None`` when no floor was measured (then nothing
            is forgiven).
    """

    comparisons: tuple[Comparison, ...]
    tolerance: float | None

    def count(self, outcome: Outcome) -> int:
        """How many requests had that outcome."""
        return sum(each.outcome is outcome for each in self.comparisons)

    @property
    def failed(self) -> tuple[Comparison, ...]:
        """The requests that no tie explains."""
        return tuple(each for each in self.comparisons if each.outcome in FAILED)

    @property
    def verdict(self) -> str:
        """``DIVERGED``, ``INCONCLUSIVE`` (a gap is not known), ``VACUOUS`` (nothing compared) or ``PASS``."""
        if not self.comparisons:
            return "VACUOUS"
        if self.failed:
            return "DIVERGED"
        return "INCONCLUSIVE" if self.count(Outcome.UNDECIDED) else "PASS"

    def headline(self) -> str:
        """Counts, and the first failure."""
        tokens = sum(each.compared for each in self.comparisons)
        text = (
            f"{self.count(Outcome.EQUAL)} of {len(self.comparisons)} outputs equal, {tokens} tokens compared"
        )
        if ties := self.count(Outcome.TIE):
            limit = f" (gap up to {self.tolerance:.3g} nats)" if self.tolerance is not None else ""
            text += f", {ties} tie{'s' if ties > 1 else ''}{limit}"
        if open_ := self.count(Outcome.UNDECIDED):
            text += f", {open_} undecided"
        first = min(self.failed, key=lambda each: each.request, default=None)
        return f"{text}; {first.line()}" if first else text


def compare(
    reference: Sequence[Output],
    other: Sequence[Output],
    floor: Floor | None,
    *,
    wanted_tokens: int | Sequence[int] | None = None,
) -> ParityResult:
    """Compare the outputs of the same requests, one by one.

    Args:
        reference: from the reference server, with top-2 candidates where they are known.
        other: from the server under test, in the same order.
        floor: of the reference; without one no difference is forgiven.
        wanted_tokens: tokens asked for, of all or of each; an output that is shorter and did not stop by
            itself is TRUNCATED, even where both are equally short.

    Raises:
        ValueError: not the same number of requests.
    """
    if len(reference) != len(other):
        raise ValueError(f"{len(reference)} reference outputs against {len(other)}")
    tolerance = floor.tolerance if floor is not None else None
    tokens = [wanted_tokens] * len(reference) if not isinstance(wanted_tokens, Sequence) else wanted_tokens
    found = [_compare_one(i, reference, other[i], tolerance, tokens[i]) for i in range(len(reference))]
    return ParityResult(tuple(found), tolerance)


def _compare_one(
    request: int,
    references: Sequence[Output],
    other: Output,
    tolerance: float | None,
    wanted_tokens: int | None,
) -> Comparison:
    reference = references[request]
    if not reference.ids:
        return Comparison(request, Outcome.EMPTY, 0)
    position = first_difference(reference.ids, other.ids)
    if position is None:
        length = len(other.ids)
        if wanted_tokens is not None and length < wanted_tokens and not other.stopped:
            return Comparison(request, Outcome.TRUNCATED, length, length)
        return Comparison(request, Outcome.EQUAL, length)
    wanted = reference.ids[position] if position < len(reference.ids) else None
    got = other.ids[position] if position < len(other.ids) else None
    top = (reference.top or {}).get(position)
    gap = top.gap if top is not None else None
    matches = _owner(request, references, other, position)
    repetition = find_repetition(other.ids, position)
    outcome = Outcome.DIVERGED
    if matches is not None:
        outcome = Outcome.SWAPPED
    elif got is None:
        outcome = Outcome.TRUNCATED
    elif wanted is not None and tolerance is not None:
        # A tie is a choice between the reference's two best: any third token is a divergence at any gap.
        if top is None:
            outcome = Outcome.UNDECIDED
        elif {wanted, got} == set(top.ids) and top.gap <= tolerance:
            outcome = Outcome.TIE
    return Comparison(request, outcome, position, position, wanted, got, gap, matches, repetition)


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """First position where they differ, or where one ends before the other; ``None`` when equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def _owner(request: int, references: Sequence[Output], other: Output, position: int) -> int | None:
    """The request whose output was given instead, if one agrees for longer than chance explains."""
    for i, candidate in enumerate(references):
        if i == request or not candidate.ids or candidate.ids == references[request].ids:
            continue
        if candidate.ids == other.ids:
            return i
        # Swapped under way: what came before the difference is its own.
        theirs, ours = candidate.ids[position:], other.ids[position:]
        agreed = first_difference(theirs, ours)
        length = len(ours) if agreed is None else agreed
        # Two outputs that both end in a few tokens over and over agree there without being one another's.
        distinct = len(set(ours[:length]))
        if length >= max(SHORTEST_MATCH, len(ours) // 2) and 2 * distinct > length:
            return i
    return None


def measure_floor(pairs: Sequence[tuple[Mapping[int, TopTwo], Mapping[int, TopTwo]]]) -> Floor | None:
    """The floor from the top-2 gaps of the same tokens in two kernel shapes.

    The gap itself is compared, not the best token's log-probability: where the model is sure, that one stays
    near 0 whatever the logits do.

    Args:
        pairs: per request, position -> candidates in either shape; only positions in both are compared.

    Returns:
        ``None`` when nothing was compared.
    """
    moved = [abs(a[i].gap - b[i].gap) for a, b in pairs for i in a.keys() & b.keys()]
    return Floor(max(moved), len(moved)) if moved else None


def _id(token: int | None) -> str:
    return "the end" if token is None else f"id {token}"
