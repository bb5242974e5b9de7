"""The founding figures, row 5, and the arithmetic's limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokgate.analysis.breakeven import break_even
from tokgate.errors import UsageFault


def test_founding_row_5() -> None:
    found = break_even(baseline_tok_s=82, cycle_ms=30, accept_length=2.0)
    assert found.break_even_accept_length == pytest.approx(2.46)
    assert found.predicted_tok_s == pytest.approx(66.667, abs=1e-3)
    assert found.break_even_cycle_ms == pytest.approx(24.39, abs=1e-2)
    assert not found.wins
    assert found.residual is None and found.nearer is None


def test_the_notes_do_not_add_up_and_it_is_noticed() -> None:
    found = break_even(baseline_tok_s=82, cycle_ms=30, accept_length=2.0, measured_tok_s=60.5)
    assert found.residual is not None
    assert found.residual.effective_cycle_ms == pytest.approx(33.06, abs=0.01)
    assert found.residual.outside_ms == pytest.approx(3.06, abs=0.01)
    assert found.residual.outside_share == pytest.approx(0.0925, abs=1e-3)
    assert found.residual.implied_accept_length == pytest.approx(1.815)
    assert found.accept_lever.needed == pytest.approx(2.71, abs=0.01)


def test_figures_that_add_up_leave_nothing() -> None:
    found = break_even(baseline_tok_s=82, cycle_ms=30, accept_length=2.0, measured_tok_s=2000 / 30)
    assert found.residual is not None
    assert found.residual.outside_ms == pytest.approx(0)


def test_the_founding_scenario_has_accept_length_as_nearer_lever() -> None:
    found = break_even(baseline_tok_s=82.5, cycle_ms=33, accept_length=2.0, draft_steps=3)
    assert found.break_even_accept_length == pytest.approx(2.72, abs=0.01)
    assert found.speedup == pytest.approx(0.735, abs=1e-3)
    assert found.nearer is not None and found.nearer.name == "accept length"
    # With two steps at most three tokens: there the cycle is nearer.
    two = break_even(baseline_tok_s=82.5, cycle_ms=33, accept_length=2.0, draft_steps=2)
    assert two.nearer is not None and two.nearer.name == "cycle time"


def test_a_lever_that_cannot_reach() -> None:
    found = break_even(baseline_tok_s=90, cycle_ms=60, accept_length=2.0, draft_steps=3)
    assert found.accept_lever.share_of_room is not None and found.accept_lever.share_of_room > 1
    assert found.nearer is not None and found.nearer.name == "cycle time"
    at_bound = break_even(baseline_tok_s=90, cycle_ms=60, accept_length=4.0, draft_steps=3)
    assert at_bound.accept_lever.share_of_room == float("inf")


def test_a_net_gain() -> None:
    found = break_even(baseline_tok_s=850, cycle_ms=2.7, accept_length=2.89, draft_steps=3)
    assert found.wins and found.speedup == pytest.approx(1.259, abs=1e-3)
    assert found.nearer is None


@given(st.floats(1, 2000), st.floats(0.5, 200), st.floats(1, 9), st.none() | st.floats(1, 3000))
def test_win_means_above_break_even(
    baseline: float, cycle: float, accept: float, measured: float | None
) -> None:
    found = break_even(baseline_tok_s=baseline, cycle_ms=cycle, accept_length=accept, measured_tok_s=measured)
    if measured is None:
        assert found.wins == (found.speedup > 1)
        assert (accept > found.break_even_accept_length * (1 + 1e-9)) <= found.wins
    assert found.predicted_tok_s * cycle / 1000 == pytest.approx(accept)


@pytest.mark.parametrize(
    "wrong",
    [
        {"baseline_tok_s": 0.0},
        {"cycle_ms": -1.0},
        {"accept_length": 0.9},
        {"accept_length": float("nan")},
        {"measured_tok_s": float("inf")},
        {"draft_steps": 0},
        {"draft_steps": 1, "accept_length": 2.5},
    ],
)
def test_impossible_figures_are_refused(wrong: dict[str, float]) -> None:
    figures = {"baseline_tok_s": 82.0, "cycle_ms": 30.0, "accept_length": 2.0} | wrong
    with pytest.raises(UsageFault):
        break_even(**figures)  # type: ignore[arg-type]
