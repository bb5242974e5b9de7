"""Greedy parity: the cases that every profile answers, what was answered, and the verdict on two answers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tokgate.analysis.parity import Floor, Outcome, Output, TopTwo, compare, first_difference, measure_floor
from tokgate.analysis.parity_case import Case, CaseRequest, save_case
from tokgate.config.gate import ParitySizes
from tokgate.verdict import Kind, Verdict

FIRST_ID = 300
"""Ids below are special tokens and raw bytes in most vocabularies."""

SMALL_VOCABULARY = 1000
"""Prompts stay below this where the model's vocabulary is not known here."""

ALONE = 4
"""Requests of a batch that a reference is asked again one by one, for the floor."""

SHAPES = "decoding, re-scoring, batch and single requests"
"""The kernel shapes of the floor, for messages."""

SHOWN_DIFFERENCES = 6
CASES = ("batch-1", "batch-4-mixed", "batch-8-shared", "shared-in-turn", "long-context", "many")


def cases(sizes: ParitySizes, vocabulary: int) -> dict[str, Case]:
    """The cases by name: batch sizes 1, 4 and 8, mixed lengths, a shared prefix at once and in turn (so that
    all but the first are served from the prefix cache where there is one), a long context, and many prompts.

    Args:
        sizes: how long and how many.
        vocabulary: ids stay below it.
    """
    uniform = random.Random(20261129).random

    def ids(length: int) -> list[int]:
        return [FIRST_ID + int(uniform() * (vocabulary - FIRST_ID)) for _ in range(length)]

    def case(prompts: Sequence[list[int]], note: str) -> Case:
        requests = [CaseRequest(prompt_ids=prompt, new_tokens=sizes.new_tokens) for prompt in prompts]
        return Case(note=note, requests=requests)

    prefix = ids(sizes.prompt_tokens)
    suffixes = [ids(4) for _ in range(4)]
    return {
        "batch-1": case([ids(sizes.prompt_tokens)], "one request alone"),
        "batch-4-mixed": case(
            [ids(max(1, sizes.prompt_tokens * share // 4)) for share in (1, 2, 4, 8)],
            "four requests of mixed lengths at once",
        ),
        "batch-8-shared": case(
            [prefix + suffix for suffix in (*suffixes, *suffixes)],
            "eight requests at once that share a prefix, each prompt twice",
        ),
        "shared-in-turn": case(
            [prefix + suffix for suffix in suffixes], "four requests that share a prefix, one after another"
        ).model_copy(update={"together": False}),
        "long-context": case([ids(sizes.long_context_tokens)], "one long prompt"),
        "many": case(
            [ids(1 + int(uniform() * 2 * sizes.prompt_tokens)) for _ in range(sizes.many_prompts)],
            "many prompts of all lengths at once",
        ),
    }


@dataclass(frozen=True, slots=True)
class Answers:
    """What one server answered to one case.

    Attributes:
        outputs: in the order of the case's requests; with top-2 candidates from a reference.
        again: the same asked a second time: the control.
        floor: how far the server's own top-2 gaps move between kernel shapes; ``None`` when not measured.
    """

    outputs: tuple[Output, ...]
    again: tuple[Output, ...]
    floor: Floor | None


class Server(Protocol):
    """What is asked: :class:`~tokgate.gate.greedy.GreedyClient`, or a stand-in in tests."""

    def flush(self) -> None: ...

    def answer(self, case: Case, *, candidates: bool = False) -> list[Output]: ...

    def rescore(self, request: CaseRequest, output: Output) -> Mapping[int, TopTwo]: ...


def ask(server: Server, case: Case, *, as_reference: bool) -> Answers:
    """Put a case to a server, its prefix cache emptied before unless the case says otherwise.

    Args:
        as_reference: also ask twice, for the control and the candidates, and measure the floor.

    Raises:
        LoadFault: no answer, or not one of token ids.
    """
    if case.flush_first:
        server.flush()
    outputs = tuple(server.answer(case))
    return as_a_reference(server, case, outputs) if as_reference else Answers(outputs, (), None)


def as_a_reference(server: Server, case: Case, outputs: Sequence[Output]) -> Answers:
    """A server's answers with what a reference needs: candidates, the control and the floor.

    Args:
        outputs: what it answered before.

    Raises:
        LoadFault: as :func:`ask`.
    """
    scored = server.answer(case, candidates=True)
    pairs = [
        (output.top or {}, server.rescore(request, output))
        for request, output in zip(case.requests, scored, strict=True)
    ]
    if case.together and len(case.requests) > 1:
        few = {"requests": case.requests[:ALONE], "together": False}
        alone = server.answer(case.model_copy(update=few), candidates=True)
        pairs += [_in_common(one, other) for one, other in zip(scored, alone, strict=False)]
    # The first answers are those of plain decoding. Their candidates are those of the second time; where
    # that went another way at a tie, the first output is scored by itself.
    known = tuple(
        replace(first, top=second.top if first.ids == second.ids else server.rescore(request, first))
        for request, first, second in zip(case.requests, outputs, scored, strict=True)
    )
    return Answers(known, tuple(scored), measure_floor(pairs))


def _in_common(one: Output, other: Output) -> tuple[Mapping[int, TopTwo], Mapping[int, TopTwo]]:
    """Candidates of two outputs where both have the same tokens before."""
    end = first_difference(one.ids, other.ids)
    top = {i: each for i, each in (one.top or {}).items() if end is None or i <= end}
    return top, other.top or {}


@dataclass(frozen=True, slots=True)
class Parties:
    """Who is compared, in the words of a message.

    Attributes:
        compared: what is held against what.
        reference: the side that is right by definition.
        urls: what stands for the reference and the other in a command that asks both again.
    """

    compared: str
    reference: str
    urls: tuple[str, str] = ("REFERENCE_URL", "OTHER_URL")


def judge(
    name: str,
    case: Case,
    profile: str,
    parties: Parties,
    wanted: Answers,
    got: Answers,
    truth: Sequence[Sequence[int]] | None,
    folder: Path,
) -> Verdict:
    """The verdict on the answers of a profile to a case.

    Args:
        name, case: of the case.
        profile: its name.
        parties: the reference and the other, in words.
        wanted, got: their answers.
        truth: the right outputs where they are known beforehand (a synthetic pair).
        folder: where a diverging case is written, to be replayed.
    """
    new_tokens = case.requests[0].new_tokens
    control = compare(wanted.outputs, wanted.again, wanted.floor)
    result = compare(wanted.outputs, got.outputs, wanted.floor, wanted_tokens=new_tokens)
    body = [f"{case.note}; {parties.compared}, token by token"]
    if wanted.floor is None:
        body.append("floor: not measured, so no difference is forgiven as a tie")
    else:
        body.append(
            f"floor: {parties.reference} moves its own top-2 gaps by up to {wanted.floor.largest:.3g} nats between "
            f"{SHAPES} ({wanted.floor.compared} gaps); a gap up to {wanted.floor.tolerance:.3g} nats is a tie"
        )
    body.append(f"control: {parties.reference} against itself: {control.headline()}")
    served = [sum(output.cached_tokens or 0 for output in each.outputs) for each in (wanted, got)]
    if any(served):
        body.append(f"prompt tokens from the prefix cache: {served[0]} of the reference, {served[1]} here")
    differing = [each for each in result.comparisons if each.outcome is not Outcome.EQUAL]
    body += [each.line() for each in differing[:SHOWN_DIFFERENCES]]
    kind = Kind(result.verdict)
    headline = result.headline()
    astray = _astray(wanted.outputs, truth)
    if truth is not None and astray is None:
        body.append("both are held against the output known beforehand: the reference follows it")
    if astray is not None:
        kind = Kind.DIVERGED
        headline = f"the reference itself leaves the output known beforehand: {astray}"
    elif kind is Kind.DIVERGED and control.failed:
        # A reference that contradicts itself proves nothing about the other.
        kind = Kind.INCONCLUSIVE
        body.append("the reference's own output is not reproducible, so the difference proves nothing")
    files: tuple[str, ...] = ()
    command = None
    if kind is Kind.DIVERGED:
        path = folder / f"{profile}-{name}.case.json"
        save_case(_smallest(case, result.failed[0].request if result.failed else None), path)
        files = (str(path),)
        command = f"tokgate parity replay {path} --url {parties.urls[0]} --url {parties.urls[1]}"
    return Verdict(
        kind,
        f"parity-{name}[{profile}]",
        headline,
        body=tuple(body),
        next_command=command,
        files=files,
        evidence={
            "profile": profile,
            "workload": f"parity-{name}",
            "metric": "greedy parity",
            "equal": result.count(Outcome.EQUAL),
            "ties": result.count(Outcome.TIE),
            "requests": len(result.comparisons),
            "cached_tokens": served[1],
        },
    )


def _smallest(case: Case, failing: int | None) -> Case:
    """The case cut to what can be cut without trying: nothing past the failing request."""
    if failing is None:
        return case
    note = f"{case.note}; request {failing} diverged"
    return case.model_copy(update={"requests": case.requests[: failing + 1], "note": note})


def _astray(outputs: Sequence[Output], truth: Sequence[Sequence[int]] | None) -> str | None:
    if truth is None:
        return None
    for number, (output, right) in enumerate(zip(outputs, truth, strict=True)):
        at = first_difference(right, output.ids)
        if at is not None:
            return f"request {number} at output token {at}"
    return None
