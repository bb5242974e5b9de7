"""The cases that began it: each must come out as the investigators would have it."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from tokgate.analysis.blocks import pair
from tokgate.analysis.interval import ratio_interval
from tokgate.analysis.sequential import History, Plan, judge
from tokgate.analysis.stored import judge_stored

RUNS = [60.4, 65.5, 50.9, 61.5, 59.5]
H200 = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "decision" / "h200_aa.json").read_text(encoding="utf-8")
)["launches"]


def test_five_eagle3_runs_are_a_net_loss_of_the_servers_measured():
    ratio = ratio_interval(RUNS, [82.5])
    assert ratio.numerator_mean == pytest.approx(59.56)
    assert (round(ratio.value, 2), round(ratio.low, 2), round(ratio.high, 2)) == (0.72, 0.64, 0.80)
    assert ratio.below_one
    assert ratio.text().startswith("0.72x (95 % CI 0.64..0.80, 5 runs, launch effect not covered")


def test_runs_like_the_baseline_are_no_net_loss():
    ratio = ratio_interval([value * 82.5 / 59.56 for value in RUNS], [82.5])
    assert not ratio.below_one and not ratio.above_one


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0])
def test_82_against_90_on_another_day_is_no_regression_without_the_reference_beside_it(spread):
    decision = judge_stored(
        [[90 + spread * k for k in (-1, 0.5, 0, 0.3, 0.2)]],
        [82 + spread * k for k in (0.1, -0.2, 0, 0.4, -0.3)],
        better="higher",
        limit=0.03,
        alpha=0.01,
    )
    assert decision.kind == "INCONCLUSIVE"
    assert decision.ratio == pytest.approx(82 / 90, abs=0.01)
    assert any("reference" in note for note in decision.notes)


def test_ten_sessions_of_one_day_are_one():
    sessions = [[90 + 0.1 * k, 90.1, 89.9] for k in range(10)]
    asked = {"better": "higher", "limit": 0.03, "alpha": 0.01}
    one_day = judge_stored(sessions, [82, 82.1, 81.9], days=["2026-01-05"] * 10, **asked)
    ten_days = judge_stored(sessions, [82, 82.1, 81.9], days=[f"2026-01-{d:02}" for d in range(10)], **asked)
    assert (one_day.kind, ten_days.kind) == ("INCONCLUSIVE", "REGRESSION")


@pytest.mark.parametrize("history", [None, History(0.02, 20), History(0.1, 20)])
def test_identical_h200_launches_are_no_regression(history):
    """One of the five launches is 19 % slower: no split into A and B may blame a build."""
    plan = Plan(limit=0.03, better="higher", alpha=0.01)
    for order in itertools.permutations(range(5), 4):
        a, b = [H200[i] for i in order[:2]], [H200[i] for i in order[2:]]
        decision = judge([item.difference for item in pair(a, b, "higher")], plan, history)
        assert decision.kind != "REGRESSION"
    # Three launches a side, the slow one in each place in turn, cut into runs of four.
    parts = [launch[i : i + 4] for launch in H200 for i in (0, 4, 8)]
    for order in itertools.islice(itertools.permutations(range(15), 6), 0, 200_000, 1997):
        a, b = [parts[i] for i in order[:3]], [parts[i] for i in order[3:]]
        blocks = pair(a, b, "higher")
        slow = {4, 5, 3}
        if slow <= set(order[3:]):
            continue  # all three candidate launches cut from the one slow launch: a planted regression
        assert judge([item.difference for item in blocks], plan, history).kind != "REGRESSION"


def test_a_regression_planted_in_the_h200_series_is_found():
    """Control to the test above: 25 % off every candidate launch of the quiet ones."""
    quiet = [launch for i, launch in enumerate(H200) if i != 1]
    parts = [launch[i : i + 4] for launch in quiet for i in (0, 4, 8)]
    a, b = parts[:6], [[0.75 * x for x in runs] for runs in parts[6:]]
    decision = judge([item.difference for item in pair(a, b, "higher")], Plan(0.03, "higher", 0.01), None)
    assert decision.kind == "REGRESSION"
    assert math.isclose(decision.ratio, 0.75, rel_tol=0.05)
