"""The decision benchmark measures the product and not a copy of it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.decision.model import Scenario, batches, scenarios, trimmed
from benchmarks.decision.report import BEGIN, END, Cell, any_of
from benchmarks.decision.rules import (
    Ends,
    best_of,
    cluster_bootstrap,
    mann_whitney,
    mann_whitney_bound,
    ours,
    sprt,
    threshold,
    welch,
)
from benchmarks.page import put
from tokgate.analysis.blocks import arm
from tokgate.analysis.looks import NU0_MAX, walk
from tokgate.analysis.sequential import History, Plan, judge

PLAN = Plan(0.03, "higher", 0.01, blocks_max=12)


def test_vectorised_arms_are_those_of_the_product():
    rng = np.random.default_rng(0)
    for runs in (3, 4, 5):
        data = rng.normal(0, 0.05, (20, runs))
        assert trimmed(data) == pytest.approx([np.log(arm(np.exp(row), "higher").value) for row in data])


@pytest.mark.parametrize("history", [True, False])
def test_a_walk_stops_where_the_judge_would(history):
    rng = np.random.default_rng(1)
    d = rng.normal(-0.02, 0.02, (25, 12))
    s0 = rng.uniform(0.015, 0.03, 25)
    end = walk(d, PLAN, s0 if history else None, NU0_MAX)
    for i in range(25):
        known = History(float(s0[i]), 20) if history else None
        for n in range(1, 13):
            kind = judge(d[i, :n], PLAN, known).kind
            if kind != "INCONCLUSIVE":
                break
        assert end.blocks[i] == n
        told = (bool(end.regression[i]), bool(end.improved[i]), bool(end.passed[i]))
        assert told == (kind == "REGRESSION", kind == "IMPROVED", kind == "PASS")


def test_the_same_seed_gives_the_same_series_and_effects_are_planted():
    one, two = (next(batches(Scenario("typical"), 500, seed=1, batch=500)) for _ in range(2))
    assert np.array_equal(one.differences, two.differences)
    slowed = one.slowed(-0.1)
    assert np.mean(slowed.differences - one.differences) == pytest.approx(np.log(0.9))
    assert one.differences[:, 0] == pytest.approx(
        trimmed(one.candidate[:, 0, :4]) - trimmed(one.reference[:, 0, :4])
    )


def test_scenarios_scatter_as_they_say():
    found = {}
    for scenario in scenarios():
        batch = next(batches(scenario, 2000, seed=1, blocks=4, batch=2000))
        found[scenario.name] = float(batch.differences.std()), float(np.sqrt((batch.s0**2).mean()))
        assert abs(batch.differences.mean()) < 5 * batch.differences.std() / np.sqrt(8000)
    today, before = found["typical, 1.5 x calibration"]
    assert today == pytest.approx(1.5 * before, rel=0.06)
    assert found["quiet"][0] < found["typical"][0] < found["loud"][0]
    assert found["H200 recorded"][0] > 2 * found["H200 recorded, slow launch void"][0]


def test_mann_whitney_bounds_are_those_of_the_tables():
    assert mann_whitney_bound(10, 10, 0.05) == 23
    assert mann_whitney_bound(5, 5, 0.05) == 2
    assert mann_whitney_bound(3, 3, 0.05) == -1


def test_every_rule_alarms_on_a_collapse_and_not_on_an_exact_copy():
    batch = next(batches(Scenario("still", launch=1e-4, run=1e-4), 50, seed=1, batch=50))
    for rule in (
        ours(PLAN),
        ours(PLAN, history=False),
        sprt(PLAN, 1e-3),
        threshold(0.05),
        welch(0.05),
        mann_whitney(0.05, 1.1),
        best_of(3, 0.05),
        cluster_bootstrap(0.01),
    ):
        assert rule(batch.slowed(-0.5)).alarm.all()
    assert not threshold(0.05)(batch).alarm.any()
    assert not ours(PLAN)(batch).alarm.any()
    assert ours(PLAN)(batch).clear.all()


def test_cells_count():
    end = Ends(np.array([True, False]), np.array([False, False]), np.array([3.0, 40.0]))
    cell = Cell().plus(end, 0.0).plus(end, 0.0)
    assert (cell.series, cell.rate, cell.cost, cell.undecided) == (4, 0.5, 21.5, 0.5)
    assert 0.5 < cell.rate_at_most < 1
    assert any_of(0.00025, 40) == pytest.approx(0.00995, abs=1e-4)


def test_tables_go_between_the_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    put(page, BEGIN, END, "new")
    assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(SystemExit, match="lacks the marks"):
        put(page, BEGIN, END, "new")
