"""A reference that goes either way at ties: its first output is scored by itself, and ties stay ties."""

from __future__ import annotations

from dataclasses import replace

from tests.analysis_parity.imagined import Imagined
from tokgate.analysis.parity import Outcome, TopTwo, compare
from tokgate.analysis.parity_case import Case, CaseRequest
from tokgate.gate.parity import ask

CASE = Case(requests=[CaseRequest(prompt_ids=[seed], new_tokens=60) for seed in range(300, 312)])
TIE = 0.01


class Either(Imagined):
    """Takes the second-best token at ties when it is asked the first time, and the best one later."""

    def answer(self, case, *, candidates=False):
        self._flip = TIE if self.asked == 0 else 0.0
        return super().answer(case, candidates=candidates)


def test_the_reference_really_goes_two_ways():
    answers = ask(Either(), CASE, as_reference=True)
    assert [a.ids for a in answers.outputs] != [b.ids for b in answers.again]


def test_a_difference_at_its_tie_is_a_tie_whichever_way_it_went():
    answers = ask(Either(), CASE, as_reference=True)
    result = compare(answers.outputs, Imagined().answer(CASE), answers.floor)
    assert result.count(Outcome.TIE) > 0
    assert result.count(Outcome.UNDECIDED) == 0
    assert result.verdict == "PASS"


def test_a_difference_past_its_tie_is_still_found():
    answers = ask(Either(), CASE, as_reference=True)
    numbers = [
        i for i, (a, b) in enumerate(zip(answers.outputs, answers.again, strict=True)) if a.ids != b.ids
    ]
    got = [output.ids for output in answers.outputs]
    wrong = numbers[0]
    got[wrong] = (*got[wrong][:-1], got[wrong][-1] + 1)
    result = compare(
        answers.outputs, [type(o)(ids) for o, ids in zip(answers.outputs, got, strict=True)], answers.floor
    )
    assert result.comparisons[wrong].outcome is Outcome.DIVERGED
    assert result.comparisons[wrong].position == 59


def test_the_floor_is_the_wobble_between_shapes():
    answers = ask(Imagined(), CASE, as_reference=True)
    assert answers.floor is not None
    assert 0.005 < answers.floor.largest <= 0.01
    assert answers.floor.compared == 12 * 60 + 4 * 60


def test_a_reference_whose_gaps_move_with_the_batch_has_a_wider_floor():
    class Shaped(Imagined):
        """Log-probabilities of a batch are not those of single requests."""

        def answer(self, case, *, candidates=False):
            found = super().answer(case, candidates=candidates)
            return (
                [replace(o, top={i: moved(t) for i, t in o.top.items()}) for o in found]
                if (candidates and not case.together)
                else found
            )

    def moved(top):
        return TopTwo(top.ids, (top.logprobs[0], top.logprobs[1] - 0.5))

    floor = ask(Shaped(), CASE, as_reference=True).floor
    assert floor.largest > 0.49


def test_only_gaps_after_the_same_tokens_are_compared():
    class Other(Imagined):
        """Asked alone it goes another way from token 3 on, where its gaps mean something else."""

        def answer(self, case, *, candidates=False):
            found = super().answer(case, candidates=candidates)
            return (
                [replace(o, ids=(*o.ids[:3], 1, *o.ids[4:])) for o in found] if not case.together else found
            )

    assert ask(Other(), CASE, as_reference=True).floor.compared == 12 * 60 + 4 * 4
