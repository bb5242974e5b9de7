"""Accept length by counts and by requests, CUSUM, multiplicity, power."""

from __future__ import annotations

import numpy as np
import pytest

from tokgate.analysis.bootstrap import judge_requests
from tokgate.analysis.cusum import cusum
from tokgate.analysis.exact import Count, accept_length, counts, judge_counts
from tokgate.analysis.multiplicity import alpha_per_verdict, any_false_alarm
from tokgate.analysis.power import power_curve
from tokgate.analysis.sequential import History, Plan
from tokgate.errors import SampleFault
from tokgate.load.sample import Request

RUN = (Count(511, 177), Count(511, 175))


def drawn(rng: np.random.Generator, factor: float = 1.0, size: int = 64) -> tuple[Count, ...]:
    lengths = rng.normal(2.5, 0.25, size)
    return tuple(Count(500, round(500 / (factor * length))) for length in lengths)


def test_equal_counts_pass_and_any_change_is_told():
    same = judge_counts([RUN, RUN], [RUN, RUN], limit=0.01)
    assert (same.kind, same.ratio, same.notes) == ("PASS", 1.0, ())
    slightly = judge_counts([RUN], [(Count(511, 178), Count(511, 175))], limit=0.01)
    assert slightly.kind == "PASS"
    assert "changed for 1 of 2 requests: request 0 took 177 passes" in slightly.notes[0]


@pytest.mark.parametrize(("passes", "kind"), [(511, "REGRESSION"), (120, "IMPROVED")])
def test_a_change_beyond_the_limit_is_called(passes, kind):
    assert judge_counts([RUN], [(Count(511, passes), Count(511, passes))], limit=0.01).kind == kind


def test_changes_that_cancel_in_the_total_are_still_told():
    swapped = judge_counts([RUN], [(Count(511, 175), Count(511, 177))], limit=0.01)
    assert swapped.ratio == 1.0
    assert "2 of 2 requests" in swapped.notes[0]


def test_counts_that_vary_from_run_to_run_are_not_exact():
    assert judge_counts([RUN, RUN[::-1]], [RUN], limit=0.01) is None


def test_different_prompts_or_no_runs_are_refused():
    with pytest.raises(SampleFault, match="2 requests in the reference but 1"):
        judge_counts([RUN], [RUN[:1]], limit=0.01)
    with pytest.raises(SampleFault, match="candidate: no runs"):
        judge_counts([RUN], [], limit=0.01)
    with pytest.raises(SampleFault, match="0 verify passes"):
        accept_length(())


def test_absent_counts_are_absent_and_not_zero(make_sample):
    ok = Request(0, "ok", 0.0, completion_tokens=512, verify_count=177)
    assert counts(make_sample(requests=(ok,))) == (Count(511, 177),)
    for broken in (
        Request(1, "ok", 0.0, completion_tokens=512),
        Request(1, "short", 0.0, completion_tokens=5, verify_count=2),
    ):
        assert counts(make_sample(requests=(ok, broken))) is None


def test_bootstrap_finds_a_planted_loss_and_passes_none():
    rng = np.random.default_rng(1)
    base = drawn(rng)
    kwargs = {"limit": 0.03, "alpha": 0.001}
    again = tuple(Count(item.tokens, item.passes + int(rng.integers(-2, 3))) for item in base)
    assert judge_requests([base], [again], **kwargs).kind == "PASS"
    worse = tuple(Count(item.tokens, round(1.08 * item.passes)) for item in base)
    lost = judge_requests([base], [worse], **kwargs)
    assert lost.kind == "REGRESSION"
    assert lost.interval[0] <= lost.ratio <= lost.interval[1]
    better = tuple(Count(item.tokens, round(0.9 * item.passes)) for item in base)
    assert judge_requests([base], [better], **kwargs).kind == "IMPROVED"


def test_bootstrap_alarms_no_more_often_than_asked():
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(100):
        # other draws of like prompts on both sides: as if unpaired, the widest case
        alarms += judge_requests([drawn(rng)], [drawn(rng)], limit=0.03, alpha=0.05).kind == "REGRESSION"
    assert alarms <= 12


def test_bootstrap_of_few_requests_is_inconclusive_and_repeats_itself():
    rng = np.random.default_rng(1)
    few = judge_requests([drawn(rng, size=4)], [drawn(rng, 0.5, size=4)], limit=0.03, alpha=0.01)
    assert few.kind == "INCONCLUSIVE" and "at least 8" in few.notes[0]
    base, other = drawn(rng), drawn(rng)
    first = judge_requests([base], [other], limit=0.03, alpha=0.01)
    assert first == judge_requests([base], [other], limit=0.03, alpha=0.01)


def test_cusum_sees_a_slide_that_no_night_shows():
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 0.01, 60)
    slide = np.where(np.arange(60) >= 30, -0.015, 0.0)
    told = cusum(100 * np.exp(noise + slide), center=100, spread=0.01, better="higher")
    assert told.alarm is not None and 30 <= told.alarm < 45
    assert 26 <= told.since <= told.alarm
    steady = cusum(100 * np.exp(noise), center=100, spread=0.01, better="higher")
    assert steady.alarm is None
    latency = cusum(5 * np.exp(-(noise + slide)), center=5, spread=0.01, better="lower")
    assert latency.alarm == told.alarm


def test_cusum_run_length_is_as_documented():
    """About one false alarm in 7000 nights: 500 series of 200 nights give 14 on average."""
    rng = np.random.default_rng(5)
    alarms = sum(
        cusum(np.exp(rng.normal(0, 0.01, 200)), center=1, spread=0.01, better="higher").alarm is not None
        for _ in range(500)
    )
    assert 3 <= alarms <= 30


@pytest.mark.parametrize("asked", [{"center": 0, "spread": 0.1}, {"center": 1, "spread": 0}])
def test_cusum_refuses_a_chart_without_scale(asked):
    with pytest.raises(ValueError, match="above 0"):
        cusum([1.0], better="higher", **asked)


def test_alpha_is_shared_out():
    each = alpha_per_verdict(0.01, 40)
    assert each == pytest.approx(0.00025)
    assert any_false_alarm(each, 40) <= 0.01
    for wrong in ((0.01, 0), (0, 3)):
        with pytest.raises(ValueError):
            alpha_per_verdict(*wrong)


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_power_grows_with_the_loss(better):
    sign = -1 if better == "higher" else 1
    plan = Plan(0.03, better, 0.00025)
    curve = power_curve(
        [0.0, 0.02 * sign, 0.03 * sign, 0.1 * sign], 0.02, plan, History(0.02, 20), series=400
    )
    found = [point.regression for point in curve]
    assert found == sorted(found)
    assert found[0] == 0 and found[2] > 0.9 and found[3] == 1
    assert curve[0].passed + curve[0].improved > 0.99
    for point in curve:
        assert point.regression + point.improved + point.passed + point.undecided == pytest.approx(1)
