"""What blocks are said to find is what the rule finds: a promise of the dry run that a user spends GPU time on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tokgate.analysis.looks import NU0_MAX, History, Plan, looks
from tokgate.analysis.power import smallest_detectable
from tokgate.analysis.sequential import judge
from tokgate.analysis.values import Better

PLAN = Plan(0.03, "higher", 0.005, 0.05, 40)


def share_called(loss: float, n: int, scatter: float, history: History | None, plan: Plan) -> float:
    """How often ``n`` blocks of a build with this loss are called REGRESSION, by simulation."""
    size = 4000
    shift = math.log1p(-loss) if plan.better == "higher" else -math.log1p(loss)
    d = np.random.default_rng(n).normal(shift, scatter, (size, n))
    mean = d.mean(axis=1)
    s0 = None if history is None else np.full(size, history.s0)
    squares = ((d - mean[:, None]) ** 2).sum(axis=1)
    at = looks(np.full(size, float(n)), mean, squares, plan, s0, history.nu0 if history else NU0_MAX)
    return float(np.mean(at.kinds(plan.theta)[0]))


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("scatter", [0.01, 0.02, 0.07, 0.13])
@pytest.mark.parametrize(("n", "blocks_max"), [(3, 3), (4, 4), (5, 40), (6, 6), (10, 40), (40, 40)])
def test_a_loss_that_is_said_to_be_found_is_found_so_often(
    n: int, blocks_max: int, scatter: float, calibrated: bool
) -> None:
    plan = replace(PLAN, blocks_max=blocks_max)
    history = History(scatter, 20) if calibrated else None
    loss = smallest_detectable(n, scatter, history, plan)
    assert loss is not None
    # Sharp where the scatter decides; where the limit does, a loss of half of it is never called and more is at once.
    assert 0.90 <= share_called(loss, n, scatter, history, plan) <= (0.98 if loss > 0.04 else 1.0)
    # The control: four fifths of it are not.
    assert share_called(0.8 * loss, n, scatter, history, plan) < 0.95


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_three_blocks_without_a_history_find_nothing_unless_they_are_all(better: Better) -> None:
    """Their evidence is bounded: 5.84 on the log scale, and an alpha of 0.5 % asks for 5.99."""
    plan = replace(PLAN, better=better)
    assert smallest_detectable(3, 0.01, None, plan) is None
    assert (
        judge([-1.99, -2.0, -2.01] if better == "higher" else [1.99, 2.0, 2.01], plan).kind == "INCONCLUSIVE"
    )
    found = smallest_detectable(3, 0.01, None, replace(plan, blocks_max=3))
    assert found is not None and 0.10 < found < 0.17


def test_below_three_blocks_nothing_is_found() -> None:
    assert [smallest_detectable(n, 0.01, None, PLAN) for n in (1, 2)] == [None, None]


@pytest.mark.parametrize("scatter", [0.01, 0.02, 0.07])
@pytest.mark.parametrize("n", [4, 5, 6, 8, 12, 20])
def test_a_calibration_makes_no_loss_harder_to_find(n: int, scatter: float) -> None:
    """With alternatives up to 8 limits only, a host that scatters by 7 % found no loss at all within 6 blocks."""
    without = smallest_detectable(n, scatter, None, PLAN)
    known = smallest_detectable(n, scatter, History(scatter, 20), PLAN)
    assert known is not None and without is not None
    assert known <= 1.02 * without


def test_a_host_without_scatter_finds_what_the_limit_forbids() -> None:
    found = smallest_detectable(4, 0.0, None, PLAN)
    assert found is not None and found == pytest.approx(0.03, rel=0.01)


def test_next_to_no_scatter_is_as_none() -> None:
    for n in (3, 4):
        assert smallest_detectable(n, 1e-30, None, PLAN) == smallest_detectable(n, 0.0, None, PLAN)


def test_more_blocks_and_less_scatter_find_smaller_losses() -> None:
    by_blocks = [smallest_detectable(n, 0.05, None, PLAN) or 9.0 for n in (4, 6, 10, 20, 40)]
    by_scatter = [smallest_detectable(8, s, None, PLAN) or 9.0 for s in (0.16, 0.08, 0.04, 0.02)]
    assert by_blocks == sorted(by_blocks, reverse=True)
    assert by_scatter == sorted(by_scatter, reverse=True)
