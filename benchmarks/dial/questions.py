"""What the dial's servers are asked, and what they must answer: reckoned from the rule, before any server runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokgate.analysis.parity import Output
from tokgate.analysis.parity_case import Case, CaseRequest
from tokgate.config.gate import ParitySizes
from tokgate.gate import parity
from tokgate.models.checkup import prompt_of
from tokgate.models.dial import verify_count
from tokgate.models.maker import Recipe

DIAL_TOLERANCE = 0.005
"""Share by which the accept length over whole cycles may differ from the dial's."""

COUNT_TOLERANCE = 1
"""Verify passes by which a request may differ from the prediction."""


@dataclass(frozen=True, slots=True)
class Questions:
    """What every server is asked.

    Attributes:
        cycle: one request whose new tokens after the first are whole cycles, with a prompt longer than every
            distance, so that the dial holds without exception.
        many: prompts of all lengths, some with a shared prefix, at once.
    """

    cycle: Case
    many: Case


@dataclass(frozen=True, slots=True)
class Expected:
    """Right outputs and verify counts, in the order of the requests."""

    cycle_output: list[int]
    cycle_count: int
    outputs: list[list[int]]
    counts: list[int]


def ask_for(recipe: Recipe, *, prompts: int, new_tokens: int, cycles: int) -> Questions:
    """The questions for pairs of this preset and seed; the dial does not matter."""
    rule = recipe.rule()
    longest = max(part.distance for part in rule.parts) + 2
    tokens = cycles * rule.preset.phases + 1
    cycle = CaseRequest(prompt_ids=prompt_of(rule, longest), new_tokens=tokens)
    sizes = ParitySizes(
        prompt_tokens=max(4, new_tokens // 2), new_tokens=new_tokens, many_prompts=max(2, prompts)
    )
    cases = parity.cases(sizes, rule.preset.vocab)
    requests = [*cases["batch-8-shared"].requests, *cases["many"].requests]
    return Questions(
        Case(note="whole cycles", requests=[cycle]),
        Case(note="prompts of all lengths, eight with a shared prefix", requests=requests[:prompts]),
    )


def expect(recipe: Recipe, questions: Questions) -> Expected:
    """The right answers. Takes some seconds: meant for a process of its own."""
    rule, steps = recipe.rule(), recipe.dial.steps
    outputs, counts = [], []
    for request in [*questions.cycle.requests, *questions.many.requests]:
        output = rule.continuation(request.prompt_ids, request.new_tokens)
        ids, first = [*request.prompt_ids, *output], len(request.prompt_ids)
        right = [rule.draft_is_right(ids, first + i) for i in range(request.new_tokens)]
        outputs.append(output)
        counts.append(verify_count(np.array(right, np.bool_), steps))
    return Expected(outputs[0], counts[0], outputs[1:], counts[1:])


@dataclass(frozen=True, slots=True)
class Judged:
    """One server's answers held against the rule.

    Attributes:
        accept_length: over whole cycles.
        off_percent: of that from the dial's.
        passes: verify passes of the cycle request, and predicted ones.
        exact, within: how many of the other requests have the predicted count, and one within one of it.
        known: how many outputs, the cycle's included, are the known ones.
        requests: all of them, the cycle's included.
        faults: what is not as it must be; empty when all is well.
    """

    accept_length: float | None
    off_percent: float | None
    passes: tuple[int | None, int]
    exact: int
    within: int
    known: int
    requests: int
    faults: tuple[str, ...]


def judge(dial: float, expected: Expected, cycle: Output, many: Sequence[Output]) -> Judged:
    """Hold a speculative server's answers against the rule."""
    faults = []
    counts = [output.verify_count for output in many]
    off = [
        None if got is None else abs(got - want) for got, want in zip(counts, expected.counts, strict=False)
    ]
    exact, within = off.count(0), sum(each is not None and each <= COUNT_TOLERANCE for each in off)
    if within < len(off):
        bad = next(i for i, each in enumerate(off) if each is None or each > COUNT_TOLERANCE)
        faults.append(f"prompt {bad}: {counts[bad]} verify passes, predicted {expected.counts[bad]}")
    length = off_share = None
    if not cycle.verify_count:
        faults.append("no verify count over whole cycles")
    else:
        length = (len(cycle.ids) - 1) / cycle.verify_count
        off_share = length / dial - 1
        if abs(off_share) > DIAL_TOLERANCE:
            faults.append(f"accept length {length:.3f} over whole cycles, dial {dial:g}")
        if abs(cycle.verify_count - expected.cycle_count) > COUNT_TOLERANCE:
            faults.append(
                f"{cycle.verify_count} verify passes over whole cycles, predicted {expected.cycle_count}"
            )
    known = count_known(expected, cycle, many)
    if known < len(many) + 1:
        faults.append(f"{len(many) + 1 - known} outputs are not the known ones")
    return Judged(
        length,
        None if off_share is None else 100 * off_share,
        (cycle.verify_count, expected.cycle_count),
        exact,
        within,
        known,
        len(many) + 1,
        tuple(faults),
    )


def count_known(expected: Expected, cycle: Output, many: Sequence[Output]) -> int:
    """How many outputs are the known ones."""
    pairs = [(cycle, expected.cycle_output), *zip(many, expected.outputs, strict=False)]
    return sum(list(output.ids) == right for output, right in pairs)
