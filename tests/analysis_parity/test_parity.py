"""Parity: each fault planted in a list of token ids gets its name, equal lists get none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokgate.analysis.parity import (
    Floor,
    Outcome,
    Output,
    TopTwo,
    compare,
    first_difference,
    measure_floor,
)
from tokgate.analysis.repetition import find_repetition

RIGHT = tuple(range(100, 164))
FLOOR = Floor(0.02, 64)


def out(ids, **more):
    return Output(tuple(ids), **more)


def one(reference, other, floor=FLOOR, **more):
    return compare([reference], [other], floor, **more)


def test_equal_outputs_pass():
    result = one(out(RIGHT), out(RIGHT), wanted_tokens=64)
    assert result.verdict == "PASS"
    assert result.headline() == "1 of 1 outputs equal, 64 tokens compared"


@pytest.mark.parametrize("depth", [0, 1, 31, 63])
def test_one_wrong_token_is_located(depth):
    wrong = [*RIGHT[:depth], 7, *RIGHT[depth + 1 :]]
    top = {depth: TopTwo((RIGHT[depth], 7), (-0.1, -3.0))}
    result = one(out(RIGHT, top=top), out(wrong))
    assert result.verdict == "DIVERGED"
    assert result.comparisons[0].position == depth
    assert f"diverged at output token {depth}: id 7 for id {RIGHT[depth]}" in result.headline()
    assert "gap 2.9 nats" in result.headline()


def test_a_tie_is_counted_and_forgiven():
    wrong = [*RIGHT[:9], 7, *([8] * 54)]
    top = {9: TopTwo((RIGHT[9], 7), (-0.69, -0.70))}
    result = one(out(RIGHT, top=top), out(wrong))
    assert result.verdict == "PASS"
    assert result.count(Outcome.TIE) == 1
    assert "1 tie (gap up to 0.04 nats)" in result.headline()


def test_a_third_token_at_a_tie_is_no_tie():
    wrong = [*RIGHT[:9], 5, *RIGHT[10:]]
    top = {9: TopTwo((RIGHT[9], 7), (-0.69, -0.70))}
    assert one(out(RIGHT, top=top), out(wrong)).verdict == "DIVERGED"


def test_a_gap_just_above_the_tolerance_is_no_tie():
    wrong = [*RIGHT[:9], 7, *RIGHT[10:]]
    above = {9: TopTwo((RIGHT[9], 7), (-0.69, -0.69 - 0.0401))}
    below = {9: TopTwo((RIGHT[9], 7), (-0.69, -0.69 - 0.0399))}
    assert one(out(RIGHT, top=above), out(wrong)).verdict == "DIVERGED"
    assert one(out(RIGHT, top=below), out(wrong)).verdict == "PASS"


def test_without_a_floor_nothing_is_forgiven():
    wrong = [*RIGHT[:9], 7, *RIGHT[10:]]
    top = {9: TopTwo((RIGHT[9], 7), (-0.69, -0.69))}
    assert one(out(RIGHT, top=top), out(wrong), None).verdict == "DIVERGED"


def test_an_unknown_gap_is_undecided_not_passed():
    wrong = [*RIGHT[:9], 7, *RIGHT[10:]]
    result = one(out(RIGHT), out(wrong))
    assert result.verdict == "INCONCLUSIVE"
    assert "1 undecided" in result.headline()


def test_truncated_output():
    result = one(out(RIGHT), out(RIGHT[:40]))
    assert result.comparisons[0].outcome is Outcome.TRUNCATED
    assert "truncated at output token 40: the end for id 140" in result.headline()


def test_both_cut_equally_short_is_not_a_pass():
    assert one(out(RIGHT[:40]), out(RIGHT[:40]), wanted_tokens=64).verdict == "DIVERGED"
    stopped = out(RIGHT[:40], stopped=True)
    assert one(stopped, stopped, wanted_tokens=64).verdict == "PASS"


def test_nothing_compared_is_not_a_pass():
    assert compare([], [], FLOOR).verdict == "VACUOUS"
    assert one(out(()), out(())).verdict == "DIVERGED"


def test_repetition_after_divergence_is_called_out():
    wrong = [*RIGHT[:20], *([7, 8, 9] * 15)][:64]
    line = one(out(RIGHT), out(wrong), None).comparisons[0].line()
    assert "from token 20 on [7, 8, 9] repeated 14 times" in line


def test_one_id_repeated():
    found = find_repetition([1, 2, 3, 9, 9, 9, 9, 9, 9, 9, 9], 3)
    assert found is not None
    assert (found.start, found.block, found.times) == (3, (9,), 8)
    assert find_repetition(RIGHT, 3) is None


def test_swapped_requests_are_recognised():
    outputs = [out(range(i * 1000, i * 1000 + 64)) for i in range(4)]
    swapped = [outputs[0], outputs[2], outputs[1], outputs[3]]
    result = compare(outputs, swapped, FLOOR)
    assert [each.outcome.value for each in result.comparisons] == ["equal", "swapped", "swapped", "equal"]
    assert "it is the output of request 2" in result.headline()


def test_requests_swapped_after_their_first_token_are_recognised():
    outputs = [out(range(i * 1000, i * 1000 + 16)) for i in range(3)]
    got = [
        out([0, *range(2001, 2016)]),
        outputs[1],
        # Too little of another's to be told from chance.
        out([*range(2000, 2008), *range(1008, 1010), *range(90, 96)]),
    ]
    outcomes = [(each.outcome.value, each.matches) for each in compare(outputs, got, FLOOR).comparisons]
    assert outcomes[:2] == [("swapped", 2), ("equal", None)]
    assert outcomes[2][1] is None


def test_outputs_that_both_end_in_the_same_repetition_are_not_swapped():
    outputs = [out(range(32)), out([*range(100, 110), *[7, 8] * 11])]
    result = compare(outputs, [out([*range(10), *[7, 8] * 11]), outputs[1]], FLOOR)
    assert result.comparisons[0].matches is None and result.comparisons[0].repetition is not None


def test_requests_swapped_half_way_are_recognised():
    outputs = [out(range(64)), out([*range(10), *range(500, 554)])]
    got = [outputs[0], out(range(64))]
    result = compare(outputs, got, FLOOR)
    assert result.comparisons[1].outcome is Outcome.SWAPPED
    assert result.comparisons[1].matches == 0


def test_two_requests_that_rightly_agree_are_not_swapped():
    same = out(RIGHT)
    wrong = out([*RIGHT[:9], 7, *([3] * 54)])
    result = compare([same, same], [same, wrong], None)
    assert result.comparisons[1].outcome is Outcome.DIVERGED


def test_floor_is_the_largest_change_of_a_gap():
    a = {0: TopTwo((1, 2), (-0.1, -2.0)), 1: TopTwo((1, 2), (-0.1, -2.0)), 5: TopTwo((1, 2), (0.0, -9.0))}
    b = {0: TopTwo((1, 3), (-0.1, -2.01)), 1: TopTwo((1, 2), (-0.1, -1.97))}
    floor = measure_floor([(a, b)])
    assert floor is not None
    assert floor.largest == pytest.approx(0.03)
    assert floor.compared == 2
    assert floor.tolerance == pytest.approx(0.06)
    assert measure_floor([({}, {})]) is None


def test_unequal_counts_are_an_error():
    with pytest.raises(ValueError, match="2 reference outputs against 1"):
        compare([out(RIGHT)] * 2, [out(RIGHT)], FLOOR)


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_first_difference_splits_where_they_part(a, b):
    at = first_difference(a, b)
    if at is None:
        assert a == b
    else:
        assert a[:at] == b[:at]
        assert a[at : at + 1] != b[at : at + 1]
