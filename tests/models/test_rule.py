"""The rule and the dial: pure arithmetic, no weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokgate.errors import UsageFault
from tokgate.models.dial import Dial, chain_length, choose_dial, cycle_accept_length, verify_count
from tokgate.models.presets import PRESETS
from tokgate.models.rule import FIRST_GENERATED, build_rule

TINY = PRESETS["tiny"]
PERFECT = Dial("accept_length", 4.0)


@pytest.fixture(scope="module")
def rule():
    return build_rule(TINY, 0, Dial("accept_length", 2.5))


@pytest.mark.parametrize("wanted", [1.1, 1.5, 2.0, 2.2, 2.5, 2.89, 3.0, 3.5, 4.0])
def test_dial_gives_the_accept_length(wanted):
    wrong = Dial("accept_length", wanted).wrong_phases(480, 0)
    assert cycle_accept_length(wrong, 3) == pytest.approx(wanted, rel=0.004)


@given(
    wanted=st.floats(1.05, 4.0),
    start=st.integers(0, 479),
    tokens=st.integers(256, 512),
)
@settings(max_examples=60, deadline=None)
def test_any_window_is_within_one_pass_of_the_dial(wanted, start, tokens):
    wrong = Dial("accept_length", wanted).wrong_phases(480, 0)
    actual = cycle_accept_length(wrong, 3)
    right = ~wrong[(start + np.arange(tokens)) % 480]
    assert abs(verify_count(right, 3) - (tokens - 1) / actual) <= 2


@pytest.mark.parametrize(("every", "expected"), [(2, 2.0), (3, 3.0), (5, 2.5), (6, 3.0), (8, 4.0)])
def test_wrong_every_follows_its_formula(every, expected):
    """m / ceil(m / (steps + 1))."""
    assert cycle_accept_length(Dial("wrong_every", every).wrong_phases(480, 0), 3) == pytest.approx(expected)


def test_agreement_follows_the_geometric_formula_roughly():
    wrong = Dial("agreement", 0.8).wrong_phases(480, 1)
    assert (~wrong).mean() == pytest.approx(0.8, abs=0.002)
    assert cycle_accept_length(wrong, 3) == pytest.approx((1 - 0.8**4) / 0.2, rel=0.06)


@pytest.mark.parametrize(
    ("dial", "message"),
    [
        (Dial("accept_length", 4.5), "cannot be had with 3 draft steps"),
        (Dial("accept_length", 1.0), "cannot be had"),
        (Dial("agreement", 1.5), "between 0 and 1"),
        (Dial("wrong_every", 2.5), "whole number"),
        (Dial("accept_length", 2.0, 0), "steps"),
    ],
)
def test_a_dial_that_cannot_be_had_is_refused(dial, message):
    with pytest.raises(UsageFault, match=message):
        build_rule(TINY, 0, dial)


def test_two_dials_are_refused():
    with pytest.raises(UsageFault, match="not several"):
        choose_dial(2.5, 0.8, None, 3)


def test_chain_and_verify_count_by_hand():
    right = np.array([True, True, True, False, True, True, True, True, True, True])
    assert chain_length(right, 1, 3) == 2
    # 1 | 2 3 and the bonus | 3 more and the bonus | the rest
    assert verify_count(right, 3) == 3
    assert verify_count(right[:1], 3) == 0


def test_table_is_a_bijection_onto_the_next_phase(rule):
    assert sorted(rule.table.ravel()) == rule.generated.tolist()
    assert len(set(rule.generated.tolist())) == TINY.generated
    assert rule.generated.min() >= FIRST_GENERATED
    for phase in (0, 17, 479):
        assert set(rule.phase[rule.table[phase]]) == {(phase + 1) % 480}


def test_special_and_byte_tokens_are_never_produced(rule):
    prompt = list(range(0, 259, 7))
    assert min(rule.continuation(prompt, 300)) >= FIRST_GENERATED


def test_every_component_decides(rule):
    """Changing one context digit changes the next token, whichever component it is."""
    ids = list(rule.generated[:200])
    for k, source in enumerate(rule.sources(199)):
        changed = list(ids)
        changed[source] = next(
            int(x)
            for x in rule.generated
            if rule.digits[x, k] != rule.digits[ids[source], k]
            and (rule.phase[x] == rule.phase[ids[source]] or source != 199)
        )
        assert rule.next_token(changed) != rule.next_token(ids)


@given(st.lists(st.integers(0, TINY.vocab - 1), min_size=1, max_size=140), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_prediction_holds_for_any_prompt(prompt, tokens):
    rule = build_rule(TINY, 0, PERFECT)
    count = rule.verify_count(prompt, tokens, 3)
    assert -(-(tokens - 1) // 4) <= count <= tokens - 1
    if len(prompt) > TINY.distances[-1] + 1:
        assert count == -(-(tokens - 1) // 4)


def test_one_crossing_of_a_distance_costs_the_draft_at_most_one_token(rule):
    """The draft's rows lack token 0, so exactly where a distance first reaches it the draft may err."""
    prompt = [int(x) for x in rule.generated[:60]]
    ids = [*prompt, *rule.continuation(prompt, 100)]
    unplanned = [
        i
        for i in range(60, 160)
        if not rule.draft_is_right(ids, i) and not rule.wrong[rule.phase[ids[i - 1]]]
    ]
    assert set(unplanned) <= {TINY.distances[-1] + 1}


@pytest.mark.parametrize(
    ("prompt", "tokens", "message"),
    [
        ([], 5, "at least one prompt token"),
        ([9000], 5, "outside the vocabulary"),
        ([3], 5000, "4096 positions"),
    ],
)
def test_a_prediction_that_cannot_be_made_is_refused(rule, prompt, tokens, message):
    with pytest.raises(UsageFault, match=message):
        rule.verify_count(prompt, tokens, 3)


def test_seeds_differ_and_repeat():
    dial = Dial("accept_length", 2.5)
    assert (build_rule(TINY, 1, dial).table == build_rule(TINY, 1, dial).table).all()
    assert (build_rule(TINY, 1, dial).table != build_rule(TINY, 2, dial).table).mean() > 0.9


def test_near_tie_twins_are_spare_ids():
    rule = build_rule(TINY, 0, PERFECT, near_tie=40)
    tied = np.flatnonzero(rule.twin >= 0)
    assert len(tied) == 12 * TINY.values
    assert not set(rule.twin[tied]) & set(rule.generated)
    with pytest.raises(UsageFault, match="spare ids"):
        build_rule(TINY, 0, PERFECT, near_tie=2)
