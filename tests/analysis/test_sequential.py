"""The sequential test: what it says of planted effects, of none, and what it never says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokgate.analysis import evidence
from tokgate.analysis.decision import ORDER
from tokgate.analysis.looks import TUNING, looks
from tokgate.analysis.sequential import History, Plan, judge
from tokgate.errors import SampleFault

PLAN = Plan(limit=0.03, better="higher", alpha=0.01 / 40)
HISTORY = History(s0=0.02, blocks=20)
SMALL = st.floats(-0.2, 0.2)
HISTORIES = st.one_of(st.none(), st.floats(0.001, 0.1).map(lambda s: History(s, 20)))


def run(rng: np.random.Generator, effect: float, scatter: float, history: History | None, plan: Plan = PLAN):
    """Blocks one by one until decided."""
    d: list[float] = []
    while True:
        d.append(math.log1p(effect) + rng.normal(0, scatter))
        decision = judge(d, plan, history)
        if decision.kind != "INCONCLUSIVE" or len(d) == plan.blocks_max:
            return decision


@pytest.mark.parametrize("history", [HISTORY, None], ids=["history", "history-free"])
@pytest.mark.parametrize(("effect", "wanted"), [(0.0, "PASS"), (-0.10, "REGRESSION"), (-0.6, "REGRESSION")])
def test_a_planted_slow_down_is_found_and_none_is_not(effect, wanted, history):
    rng = np.random.default_rng(3)
    kinds = [run(rng, effect, 0.02, history).kind for _ in range(12)]
    assert kinds == [wanted] * 12


def test_a_gain_is_improved_once_three_blocks_show_it():
    assert judge([0.15, 0.16, 0.14], PLAN, History(0.01, 20)).kind == "IMPROVED"


def test_lower_is_better_mirrors_higher_is_better():
    d = [-0.11, -0.09, -0.10, -0.12]
    slower = judge(d, PLAN, HISTORY)
    faster = judge(d, Plan(0.03, "lower", 0.01 / 40), HISTORY)
    assert (slower.kind, faster.kind) == ("REGRESSION", "IMPROVED")
    assert slower.ratio == pytest.approx(faster.ratio)
    late = judge([-x for x in d], Plan(0.03, "lower", 0.01 / 40), HISTORY)
    assert late.kind == "REGRESSION" and late.ratio > 1


def test_one_block_decides_nothing_whatever_it_shows():
    for d in (0.0, -0.5, -3.0, 0.5):
        for history in (HISTORY, None):
            decision = judge([d], PLAN, history)
            assert decision.kind == "INCONCLUSIVE"
            assert any("one launch a side" in note for note in decision.notes)


def test_a_certain_loss_below_the_limit_passes_and_says_so():
    decision = judge([-0.012, -0.0121, -0.0119, -0.012, -0.0122, -0.0118], PLAN, History(0.002, 20))
    assert decision.kind == "PASS"
    assert any("less than the limit" in note for note in decision.notes)


def test_a_thin_calibration_is_said_and_not_used():
    thin = judge([0.001, -0.002, 0.0], PLAN, History(0.02, 12))
    bare = judge([0.001, -0.002, 0.0], PLAN, None)
    assert thin.method == bare.method == "sequential, history-free"
    assert any("12 A/A blocks of 20" in note for note in thin.notes)


def test_a_noisy_day_is_labelled_and_a_usual_one_is_not():
    noisy = judge([0.2, -0.2, 0.15, -0.18], PLAN, HISTORY)
    usual = judge([0.02, -0.02, 0.015, -0.018], PLAN, HISTORY)
    assert any(note.startswith("NOISY") for note in noisy.notes)
    assert not any(note.startswith("NOISY") for note in usual.notes)


def test_blocks_needed_is_what_it_says():
    d = [-0.05, -0.03, -0.06]
    decision = judge(d, PLAN, HISTORY)
    assert decision.kind == "INCONCLUSIVE" and decision.blocks_needed
    mean, s = np.mean(d), np.std(d, ddof=1)
    kinds = []
    for more in range(2, decision.blocks_needed + 3, 2):
        # an even number of further blocks that leave mean and scatter as they are
        wave = s * np.resize([1.0, -1.0], more)
        kinds.append(judge([*d, *(mean + wave)], PLAN, HISTORY).kind)
    assert kinds[-1] == "REGRESSION"
    assert kinds[0] == "INCONCLUSIVE" or decision.blocks_needed <= 2


@pytest.mark.parametrize("bad", [[], [math.nan], [0.0, math.inf], [[0.0]]])
def test_no_verdict_from_what_is_not_a_number(bad):
    with pytest.raises(SampleFault):
        judge(bad, PLAN, HISTORY)


@given(st.lists(SMALL, min_size=1, max_size=12), HISTORIES, st.randoms())
@settings(max_examples=60, deadline=None)
def test_order_of_blocks_does_not_matter_and_the_interval_holds_the_ratio(d, history, random):
    one = judge(d, PLAN, history)
    shuffled = list(d)
    random.shuffle(shuffled)
    assert judge(shuffled, PLAN, history) == one
    if one.interval is not None:
        assert one.interval[0] <= one.ratio <= one.interval[1]


@given(st.lists(SMALL, min_size=1, max_size=45), HISTORIES, st.floats(0, 3))
@settings(max_examples=150, deadline=None)
def test_a_slower_candidate_never_fares_better(d, history, shift):
    here = judge(d, PLAN, history)
    slower = judge([x - shift for x in d], PLAN, history)
    assert ORDER.index(slower.kind) <= ORDER.index(here.kind)


def test_evidence_has_mean_one_under_its_null():
    """Both e-values, at a fixed number of blocks, against their own nulls: the property that bounds alpha."""
    rng = np.random.default_rng(11)
    size, blocks, nu0, s0 = 50_000, 5, 6.0, 0.02
    n = np.full(size, float(blocks))
    sigma = s0 * np.sqrt(nu0 / rng.chisquare(nu0, size))
    d = rng.normal(0, 1, (size, blocks)) * sigma[:, None]
    mean = d.mean(axis=1)
    squares = ((d - mean[:, None]) ** 2).sum(axis=1)
    for values in (
        evidence.with_history(-mean, nu0 * s0**2 + squares, n, nu0, 0.03, TUNING.steps, TUNING.weights),
        evidence.without_history(-mean, squares, n),
    ):
        exceed = np.mean(values >= math.log(20))
        assert 0.0005 < exceed <= 0.05, exceed


def test_the_t_evidence_agrees_with_direct_integration():
    d = np.array([0.3, -0.2, 0.9, 0.4])
    mean, n = d.mean(), len(d)
    got = evidence.without_history(
        np.array([mean]), np.array([((d - mean) ** 2).sum()]), np.array([float(n)]), effects=(1.5,)
    )[0]

    # scale-invariant prior on the scatter: integrate 1/sigma over the normal likelihood, in ln sigma
    sigma = np.exp(np.linspace(-4, 5, 20_001))

    def marginal(effect: float) -> float:
        residual = ((d[:, None] - effect * sigma) ** 2).sum(axis=0)
        return float((sigma**-n * np.exp(-residual / 2 / sigma**2)).sum())

    assert got == pytest.approx(math.log(marginal(1.5) / marginal(0.0)), abs=1e-4)


def test_looks_are_vectorised_as_judged_one_by_one():
    rng = np.random.default_rng(2)
    d = rng.normal(-0.02, 0.02, (50, 6))
    mean = d.mean(axis=1)
    squares = ((d - mean[:, None]) ** 2).sum(axis=1)
    at = looks(np.full(50, 6.0), mean, squares, PLAN, np.full(50, HISTORY.s0), HISTORY.nu0)
    regression, improved, passed = at.kinds(PLAN.theta)
    for i in range(50):
        kind = judge(d[i], PLAN, HISTORY).kind
        assert (kind == "REGRESSION", kind == "IMPROVED", kind == "PASS") == (
            regression[i],
            improved[i],
            passed[i],
        )


@pytest.mark.parametrize(
    "arguments",
    [
        {"limit": 3, "better": "higher", "alpha": 0.01},
        {"limit": 0.03, "better": "up", "alpha": 0.01},
        {"limit": 0.03, "better": "lower", "alpha": 0},
        {"limit": 0.03, "better": "lower", "alpha": 0.01, "beta": 0.7},
        {"limit": 0.03, "better": "lower", "alpha": 0.01, "blocks_max": 2},
    ],
)
def test_a_plan_that_means_nothing_is_refused(arguments):
    with pytest.raises(ValueError, match=r"limit|better|alpha|beta|blocks_max"):
        Plan(**arguments)


@pytest.mark.parametrize(("s0", "blocks"), [(0.0, 20), (math.nan, 20), (0.02, 0)])
def test_a_history_without_scatter_or_blocks_is_refused(s0, blocks):
    with pytest.raises(ValueError, match="scatter"):
        History(s0, blocks)


@pytest.mark.parametrize("history", [HISTORY, None], ids=["history", "history-free"])
@pytest.mark.parametrize("n", [3, 8, 40, 45])
def test_blocks_without_any_scatter_are_judged(history, n):
    """Emulated engines give the same value again and again: no division by zero, and the right answer."""
    assert judge([0.0] * n, PLAN, history).kind in ("PASS", "INCONCLUSIVE")
    assert judge([-0.001] * n, PLAN, history).kind in ("PASS", "INCONCLUSIVE")
    assert judge([-0.3] * n, PLAN, history).kind == ("REGRESSION" if n > 3 or history else "INCONCLUSIVE")
    if n >= 8:
        assert judge([0.0] * n, PLAN, history).kind == "PASS"


def test_absurd_differences_do_not_overflow():
    for d in ([600.0, -600.0], [-650.0] * 3):
        decision = judge(d, PLAN, None)
        assert decision.interval is not None and all(
            math.isfinite(end) and end > 0 for end in decision.interval
        )


def test_the_last_block_brings_a_fixed_size_test():
    """Evidence that an anytime bound does not reach is enough once the number of blocks is fixed."""
    rng = np.random.default_rng(6)
    noise = rng.normal(0, 1, 40)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    d = -0.025 + 0.038 * noise  # t = -4.16 on 39 degrees of freedom
    plan = Plan(0.03, "higher", 0.0005)
    assert judge(d, plan, History(0.038, 20)).kind == "REGRESSION"
    longer = Plan(0.03, "higher", 0.0005, blocks_max=60)
    assert judge(d, longer, History(0.038, 20)).kind == "INCONCLUSIVE"
