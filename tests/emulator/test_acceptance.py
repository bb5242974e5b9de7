"""Acceptance: how many tokens each verify pass of a run yields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokgate.emulator.acceptance import Acceptance, geometric_positions, mean_length


@given(st.integers(1, 400), st.floats(1.0, 4.0), st.integers(1, 5))
def test_a_plan_sums_up_and_keeps_to_what_a_pass_can_yield(tokens: int, length: float, steps: int) -> None:
    acceptance = Acceptance(geometric_positions(length, steps))
    plan = acceptance.plan(tokens)
    assert sum(plan) == tokens
    assert all(1 <= count <= steps + 1 for count in plan)


@pytest.mark.parametrize("length", [1.0, 1.8, 2.0, 2.5, 2.7, 3.9])
@pytest.mark.parametrize(("requests", "new_tokens"), [(2, 48), (8, 48), (1, 512)])
def test_accept_length_of_a_run_is_the_scenarios(length: float, requests: int, new_tokens: int) -> None:
    acceptance = Acceptance(geometric_positions(length, 3))
    passes = sum(len(acceptance.plan(new_tokens - 1)) for _ in range(requests))
    # At best a whole number of passes comes nearest to it.
    rounding = 0.5 / passes
    assert requests * (new_tokens - 1) / passes == pytest.approx(length, rel=0.01 + rounding)


def test_every_run_repeats_the_same_passes() -> None:
    acceptance = Acceptance(geometric_positions(2.0, 3))
    runs = []
    for _ in range(3):
        acceptance.new_run()
        runs.append([acceptance.plan(47), acceptance.plan(47)])
    assert runs[0] == runs[1] == runs[2]
    assert sum(map(len, runs[0])) == 47


def test_passes_are_mixed_as_acceptance_per_position_says() -> None:
    acceptance = Acceptance([0.8, 0.5, 0.5])
    plan = acceptance.plan(round(1000 * acceptance.mean))
    shares = [plan.count(count) / len(plan) for count in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.2, 0.4, 0.2, 0.2], abs=0.01)
    assert mean_length([0.8, 0.5, 0.5]) == pytest.approx(1 + 0.8 + 0.4 + 0.2)
