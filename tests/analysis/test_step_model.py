"""The model of other draft steps and of trees: its arithmetic, and what it refuses to say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokgate.analysis.step_model import (
    StepCosts,
    best_steps,
    constant_acceptance,
    cost_line,
    implied_accept_length,
    modelled_curve,
    position_acceptance,
    tree_need,
)
from tokgate.errors import UsageFault


def test_curve_and_best_steps() -> None:
    costs = StepCosts(verify_ms=3.0, draft_ms=0.5, extend_ms=0.3, other_ms=0.2)
    curve = modelled_curve(costs, [0.8], baseline_tok_s=400, measured_steps=3)
    three = curve[2]
    assert three.accept_length == pytest.approx(1 + 0.8 + 0.64 + 0.512)
    assert three.cycle_ms == pytest.approx(5.0)
    assert three.speedup == pytest.approx(2.952 / 5.0 * 1000 / 400)
    assert best_steps(curve).steps == 5
    dear = modelled_curve(StepCosts(3.0, 3.0), [0.8], baseline_tok_s=400, measured_steps=3)
    assert best_steps(dear).steps == 1
    growing = modelled_curve(
        StepCosts(3.0, 0.5, 0.3, 0.2, verify_per_token_ms=0.9), [0.8], baseline_tok_s=400, measured_steps=3
    )
    assert growing[2] == three and best_steps(growing).steps < 5
    with pytest.raises(UsageFault):
        modelled_curve(costs, [1.2], baseline_tok_s=400, measured_steps=3)


def test_accept_length_that_chances_mean() -> None:
    assert implied_accept_length([0.8, 0.5], 1) == pytest.approx(1.8)
    assert implied_accept_length([0.8, 0.5], 3) == pytest.approx(1 + 0.8 + 0.4 + 0.2)
    for wrong in ([], [1.2], [0.5, float("nan")]):
        with pytest.raises(UsageFault):
            implied_accept_length(wrong, 1)


def test_acceptance_by_position() -> None:
    assert position_acceptance([4, 1, 3, 2]) == (0.6, 5 / 6, 0.4)
    assert position_acceptance([5, 0, 0, 0]) == (0.0, None, None)
    assert position_acceptance([]) == ()
    chances = position_acceptance([0, 0, 0, 7])
    assert chances == (1.0, 1.0, 1.0)


@given(st.floats(0, 1), st.integers(1, 8))
def test_constant_acceptance_is_the_inverse_of_the_sum(chance: float, steps: int) -> None:
    length = sum(chance**power for power in range(steps + 1))
    found = constant_acceptance(min(length, steps + 1), steps)
    assert sum(found**power for power in range(steps + 1)) == pytest.approx(length, abs=1e-9)
    with pytest.raises(UsageFault):
        constant_acceptance(steps + 1.5, steps)


def test_a_line_of_costs_needs_two_numbers_of_tokens() -> None:
    line = cost_line([(4, 1.40), (32, 1.96)])
    assert line is not None
    assert line.per_token_ms == pytest.approx(0.02)
    assert line.base_ms == pytest.approx(1.32)
    assert cost_line([(4, 1.40), (4, 1.44)]) is None
    assert cost_line([]) is None
    # A pass that got cheaper with more tokens is noise: no token costs less than nothing.
    falling = cost_line([(4, 1.5), (32, 1.4)])
    assert falling is not None
    assert (falling.per_token_ms, falling.base_ms) == (0.0, pytest.approx(1.45))


def test_a_token_that_costs_more_than_the_pass_is_refused() -> None:
    with pytest.raises(UsageFault, match="leave nothing of a verify pass"):
        modelled_curve(
            StepCosts(3.0, 0.5, verify_per_token_ms=1.0), [0.8], baseline_tok_s=400, measured_steps=3
        )


def test_what_a_tree_must_reach() -> None:
    costs = StepCosts(verify_ms=3.0, draft_ms=0.5, extend_ms=0.3, other_ms=0.2, verify_per_token_ms=0.1)
    best = best_steps(modelled_curve(costs, [0.8], baseline_tok_s=400, measured_steps=3))
    wide = tree_need(costs, best, measured_steps=3, topk=2)
    assert wide.draft_tokens == 2 * (best.steps + 1)
    assert wide.cycle_ms == pytest.approx(best.cycle_ms + 0.1 * (best.steps + 1))
    assert wide.accept_length == pytest.approx(best.tok_s * wide.cycle_ms / 1000)
    assert wide.possible
    assert not tree_need(costs, best, measured_steps=3, topk=64).possible


def test_where_a_token_costs_nothing_a_tree_must_reach_what_the_chain_does() -> None:
    costs = StepCosts(verify_ms=3.0, draft_ms=0.5, extend_ms=0.3, other_ms=0.2)
    best = best_steps(modelled_curve(costs, [0.8], baseline_tok_s=400, measured_steps=3))
    assert tree_need(costs, best, measured_steps=3, topk=4).accept_length == pytest.approx(best.accept_length)
