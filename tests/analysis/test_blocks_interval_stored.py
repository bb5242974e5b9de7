"""Block differences, the ratio interval and the stored-baseline rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokgate.analysis.blocks import arm, block, differences, pair
from tokgate.analysis.decision import ORDER
from tokgate.analysis.interval import ratio_interval
from tokgate.analysis.sequential import Plan, judge
from tokgate.analysis.stored import judge_stored
from tokgate.errors import SampleFault

SPEED = st.floats(10, 5000)
RUNS = st.lists(SPEED, min_size=1, max_size=8)
ASKED = {"better": "higher", "limit": 0.03, "alpha": 0.01}


def sessions(rng: np.random.Generator, count: int, spread: float = 0.003, runs: int = 5) -> list[list[float]]:
    level = rng.normal(0, spread, (count, 1))
    return (100 * np.exp(level + rng.normal(0, 0.003, (count, runs)))).tolist()


# --- blocks


@pytest.mark.parametrize(("better", "stall", "kept"), [("higher", 10.0, 100.0), ("lower", 900.0, 100.0)])
def test_the_slowest_of_four_runs_is_trimmed_and_kept_apart(better, stall, kept):
    found = arm([100, stall, 100, 100], better)
    assert found.value == pytest.approx(kept)
    assert found.dropped == (stall,)
    assert stall in found.runs


def test_arms_of_three_and_four_runs_estimate_the_same():
    """A void run must not shift an arm: the trim is a share, not a count."""
    rng = np.random.default_rng(1)
    draws = 100 - rng.exponential(5, (4000, 4))
    four = np.mean([arm(list(row), "higher").value for row in draws])
    three = np.mean([arm(list(row[:3]), "higher").value for row in draws])
    plain = draws.mean()
    assert abs(three - four) < 0.3 * abs(four - plain)


def test_unequal_launches_and_none_are_refused():
    with pytest.raises(SampleFault, match="2 launches of the reference but 1"):
        pair([[1.0], [1.0]], [[1.0]], "higher")
    with pytest.raises(SampleFault, match="candidate: no launches"):
        pair([[1.0]], [], "higher")


@pytest.mark.parametrize("bad", [[], [math.nan], [0.0], [1.0, -1.0], [math.inf], ["x"], [[1.0]]])
def test_what_is_no_measurement_reaches_no_verdict(bad):
    for call in (
        lambda: block(bad, [1.0], "higher"),
        lambda: block([1.0], bad, "lower"),
        lambda: ratio_interval(bad, [1.0]),
        lambda: ratio_interval([1.0], bad),
        lambda: judge_stored([bad], [1.0, 1.1], **ASKED),
        lambda: judge_stored([[1.0, 1.1]] * 12, bad, **ASKED),
    ):
        with pytest.raises(SampleFault):
            call()


@given(
    st.lists(st.tuples(RUNS, RUNS), min_size=1, max_size=6),
    st.floats(0.001, 1000),
    st.sampled_from(["higher", "lower"]),
    st.randoms(),
)
@settings(max_examples=30, deadline=None)
def test_neither_the_unit_nor_the_order_of_runs_matters(blocks, factor, better, random):
    a, b = ([side for side in part] for part in zip(*blocks, strict=True))
    plan = Plan(0.03, better, 0.01)
    base = judge(differences(pair(a, b, better)), plan)
    scaled_a, scaled_b = ([[factor * x for x in runs] for runs in side] for side in (a, b))
    scaled = judge(differences(pair(scaled_a, scaled_b, better)), plan)
    assert scaled.ratio == pytest.approx(base.ratio, rel=1e-9)
    mixed_a, mixed_b = ([random.sample(runs, len(runs)) for runs in side] for side in (a, b))
    mixed = judge(differences(pair(mixed_a, mixed_b, better)), plan)
    assert mixed.ratio == pytest.approx(base.ratio, rel=1e-9)
    assert mixed.kind == base.kind == scaled.kind


# --- interval


@given(RUNS, RUNS)
@settings(max_examples=100, deadline=None)
def test_the_interval_holds_the_ratio(top, bottom):
    found = ratio_interval(top, bottom)
    assert found.low <= found.value <= found.high


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(1000):
        found = ratio_interval(rng.normal(60, 5, 5), rng.normal(80, 3, 4))
        hits += found.low <= 0.75 <= found.high
    assert 920 <= hits <= 975


def test_a_single_run_gives_no_interval():
    found = ratio_interval([50.0], [80.0, 81.0])
    assert (found.low, found.high) == (0.0, math.inf)
    assert not found.below_one
    assert "single run" in found.note


# --- stored


def test_a_loss_is_found_against_ten_sessions_and_none_is_not():
    rng = np.random.default_rng(2)
    kinds = {0.0: [], -0.1: []}
    for _ in range(60):
        recorded = sessions(rng, 11)
        for change, found in kinds.items():
            today = [(1 + change) * x for x in recorded[-1]]
            found.append(judge_stored(recorded[:-1], today, **ASKED).kind)
    assert kinds[-0.1] == ["REGRESSION"] * 60
    assert kinds[0.0].count("REGRESSION") <= 2
    assert kinds[0.0].count("PASS") >= 55


def test_fewer_sessions_are_said_and_give_a_wider_interval():
    recorded = sessions(np.random.default_rng(3), 12)
    few, many = (judge_stored(recorded[:j], recorded[-1], **ASKED) for j in (3, 11))
    assert any("3 recorded sessions of 10" in note for note in few.notes)
    assert not any("recorded sessions of" in note for note in many.notes)
    assert few.interval[1] - few.interval[0] > many.interval[1] - many.interval[0]
    assert few.smallest_detectable > many.smallest_detectable


@given(st.floats(0.2, 5), st.sampled_from(["higher", "lower"]))
@settings(max_examples=40, deadline=None)
def test_one_session_never_blames_a_build(factor, better):
    decision = judge_stored([[90, 91, 89]], [90 * factor, 91 * factor], **(ASKED | {"better": better}))
    assert decision.kind == "INCONCLUSIVE"
    assert decision.interval[0] <= decision.ratio <= decision.interval[1]
    assert any("one recorded session" in note for note in decision.notes)


def test_a_noisy_day_widens_the_interval_and_a_slow_mean_of_it_is_no_regression():
    recorded = sessions(np.random.default_rng(5), 10)
    calm = judge_stored(recorded, [94, 94.1, 93.9, 94, 94], **ASKED)
    wild = judge_stored(recorded, [118, 90, 102, 76, 84], **ASKED)
    assert calm.kind == "REGRESSION"
    assert wild.kind == "INCONCLUSIVE"
    assert any(note.startswith("NOISY") for note in wild.notes)


def test_values_without_any_scatter_are_compared():
    exact = [[2.5, 2.5]] * 10
    assert judge_stored(exact, [2.5, 2.5], **ASKED).kind == "PASS"
    assert judge_stored(exact, [2.3, 2.3], **ASKED).kind == "REGRESSION"
    assert judge_stored(exact, [2.7, 2.7], **ASKED).kind == "IMPROVED"
    assert judge_stored(exact[:2], [2.3, 2.3], **ASKED).kind == "INCONCLUSIVE"


@given(st.integers(2, 14), st.floats(0.0005, 0.05), st.floats(-0.3, 0.3), st.floats(0, 1), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_a_slower_day_never_fares_better(count, spread, change, further, seed):
    recorded = sessions(np.random.default_rng(seed), count + 1, spread)
    today = [math.exp(change) * x for x in recorded[-1]]
    here = judge_stored(recorded[:-1], today, **ASKED)
    slower = judge_stored(recorded[:-1], [math.exp(-further) * x for x in today], **ASKED)
    assert ORDER.index(slower.kind) <= ORDER.index(here.kind)
    assert here.interval[0] <= here.ratio <= here.interval[1]


def test_days_must_match_the_sessions():
    with pytest.raises(SampleFault, match="2 sessions but 1 days"):
        judge_stored([[1.0], [1.0]], [1.0], days=["2026-01-05"], **ASKED)
    with pytest.raises(SampleFault, match="no sessions"):
        judge_stored([], [1.0], **ASKED)
