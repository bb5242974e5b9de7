"""``tokgate parity search``: each planted fault is found and shrinks to a small case; how small is stated."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.analysis_parity.imagined import Imagined
from tokgate.analysis.parity import Outcome
from tokgate.errors import LoadFault, UsageFault
from tokgate.gate.parity_search import CONFIRMATIONS, Limits, Search, size, words

LIMITS = Limits(prompt_tokens=40, new_tokens=24, requests=6, examples=150)


def search(other, *, reference=None, limits=LIMITS, **more):
    return Search(reference or Imagined(), other, limits, **more).run()


def wrong_at(depth):
    def change(ids, request, number):
        return [(x + 1 if i == depth else x) for i, x in enumerate(ids)]

    return change


def repeats(ids, request, number):
    return [*ids[:5], *ids[4:-1]] if len(ids) > 5 else ids


def cut(ids, request, number):
    return ids[:7]


def only_long_prompts(ids, request, number):
    return [1, *ids[1:]] if len(request.prompt_ids) >= 17 else ids


def third_of_a_batch(ids, request, number):
    return [1, *ids[1:]] if number >= 2 else ids


def seed_matters(ids, request, number):
    return [1, *ids[1:]] if request.sampling_seed else ids


FAULTS = {
    # (requests, prompt tokens, new tokens, outcome) of the smallest case.
    "wrong token at depth 0": (Imagined(wrong_at(0)), (1, 1, 1), Outcome.DIVERGED),
    "wrong token at depth 13": (Imagined(wrong_at(13)), (1, 1, 14), Outcome.DIVERGED),
    "an id comes twice at depth 5": (Imagined(repeats), (1, 1, 6), Outcome.DIVERGED),
    "cut after 7 tokens": (Imagined(cut), (1, 1, 8), Outcome.TRUNCATED),
    "only prompts of 17 tokens and more": (Imagined(only_long_prompts), (1, 17, 1), Outcome.DIVERGED),
    "only the third request of a batch": (Imagined(third_of_a_batch), (3, 3, 3), Outcome.DIVERGED),
    "a sampling seed matters": (Imagined(seed_matters), (1, 1, 1), Outcome.DIVERGED),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_shrinks_to_the_smallest_case_that_shows_it(name):
    other, expected, outcome = FAULTS[name]
    found = search(other)
    assert found.case is not None
    assert size(found.case) == expected
    assert found.result.failed[0].outcome is outcome
    assert found.again == CONFIRMATIONS
    assert found.in_time
    assert size(found.first) >= size(found.case)


def test_requests_that_are_swapped_shrink_to_two_of_one_token_each():
    found = search(Imagined(swap=True))
    assert found.case.together
    assert len(found.case.requests) == 2
    assert all(len(request.prompt_ids) == 1 for request in found.case.requests)
    assert sum(request.new_tokens for request in found.case.requests) <= 3


def test_a_stale_prefix_shrinks_to_two_prompts_in_turn_with_a_shared_token():
    found = search(Imagined(stale_from=1))
    assert not found.case.together
    first, second = (request.prompt_ids for request in found.case.requests)
    assert first[0] == second[0]
    assert len(second) == 2, "its last token is always computed"
    assert len(first) <= 2
    assert found.case.requests[1].new_tokens == 1


def test_a_stale_prefix_of_twelve_tokens_shrinks_to_twelve_shared_ones():
    found = search(Imagined(stale_from=12))
    first, second = (request.prompt_ids for request in found.case.requests)
    shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))))
    assert shared >= 12
    assert len(second) == 13


def test_ties_are_no_failures_and_are_counted():
    found = search(Imagined(flip=0.01))
    assert found.case is None
    assert found.ties > 0
    assert found.examples > 0.8 * LIMITS.examples


def test_a_flip_beyond_the_floor_is_found():
    found = search(Imagined(flip=0.5))
    assert found.result.failed[0].gap > found.result.tolerance
    assert size(found.case)[:2] == (1, 1)


def test_two_equal_servers_are_equal():
    found = search(Imagined())
    assert (found.case, found.ties, found.undecided, found.in_time) == (None, 0, 0, True)


def test_a_reference_that_contradicts_itself_proves_nothing():
    class Fickle(Imagined):
        def answer(self, case, *, candidates=False):
            self._change = wrong_at(0) if self.asked % 2 else None
            return super().answer(case, candidates=candidates)

    found = search(Imagined(wrong_at(0)), reference=Fickle())
    assert found.case is None
    assert found.undecided > 0


def test_with_the_right_output_known_a_fault_of_both_is_found():
    def known(request):
        return list(Imagined().answer(_case(request))[0].ids)

    assert search(Imagined(wrong_at(3)), reference=Imagined(wrong_at(3))).case is None
    found = search(Imagined(wrong_at(3)), reference=Imagined(wrong_at(3)), known=known)
    assert size(found.case) == (1, 1, 4)


def _case(request):
    from tokgate.analysis.parity_case import Case

    return Case(requests=[request])


def test_when_the_time_is_up_the_smallest_so_far_stands():
    class Slow(Imagined):
        def answer(self, case, *, candidates=False):
            time.sleep(0.02)
            return super().answer(case, candidates=candidates)

    limits = Limits(prompt_tokens=40, new_tokens=24, requests=6, examples=1000, budget_s=0.3)
    found = search(Slow(only_long_prompts), reference=Slow(), limits=limits)
    assert not found.in_time
    assert found.examples < 20
    none = search(Slow(), reference=Slow(), limits=limits)
    assert none.case is None
    assert not none.in_time


def test_a_server_that_does_not_answer_ends_the_search():
    class Dead(Imagined):
        def flush(self):
            raise LoadFault("http://127.0.0.1:9/flush_cache: no answer")

    with pytest.raises(LoadFault, match="no answer") as fault:
        search(Dead())
    assert "asked: 1 request, prompt of 1 token, 1 new tokens" in str(fault.value)


def test_the_same_seed_asks_the_same_cases():
    first, again = (search(Imagined(third_of_a_batch)) for _ in range(2))
    assert (first.first, first.examples) == (again.first, again.examples)


def test_words_of_a_case():
    found = search(Imagined(only_long_prompts))
    assert words(found.case) == "1 request, prompt of 17 tokens, 1 new tokens"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"requests": 0}, "requests must be at least 1"),
        ({"vocabulary": 300}, "vocabulary must be above 300"),
        ({"budget_s": 0}, "budget must be above 0 s"),
    ],
)
def test_limits_that_leave_nothing_to_draw(limits, message):
    with pytest.raises(UsageFault, match=message):
        search(Imagined(), limits=Limits(**limits))
