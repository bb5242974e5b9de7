"""Void by cause, the fitness of a host, and where a change under speculation comes from."""

from __future__ import annotations

import pytest

from tokgate.analysis.speculation import SpeculativeRuns, attribute
from tokgate.analysis.voids import fitness, unwatched, void_reasons
from tokgate.config.gate import VoidBounds
from tokgate.errors import SampleFault
from tokgate.load.sample import Request, Void

BOUNDS = VoidBounds()
QUIET = {
    "interval_s": 2.0,
    "scheduler_run_delay_s": 0.001,
    "steal_s": 0.0,
    "gpu_power_throttle_s": 0.0,
    "gpu_thermal_throttle_s": 0.0,
    "foreign_gpu_processes": 0.0,
    "scheduler_cpu_slowdown": 1.0,
    "gpu_busy_share": 0.97,
}
WAITING = {"scheduler_cpu_slowdown": 1.4, "gpu_busy_share": 0.72}


def request(**parts) -> Request:
    return Request(**({"index": 0, "outcome": "ok", "intended_s": 0.0, "cached_tokens": 0} | parts))


FAULTS = {
    "scheduler_run_delay": {"contention": QUIET | {"scheduler_run_delay_s": 0.2}},
    "steal": {"contention": QUIET | {"steal_s": 0.001, "stolen_share": 0.1}},
    "gpu_power_throttle": {"contention": QUIET | {"gpu_power_throttle_s": 0.5}},
    "gpu_thermal_throttle": {"contention": QUIET | {"gpu_thermal_throttle_s": 0.5}},
    "foreign_gpu_process": {"contention": QUIET | {"foreign_gpu_processes": 1.0}},
    "slow_cpu": {"contention": QUIET | WAITING},
    "failed_requests": {"requests": (request(outcome="http_5xx"),)},
    "short_output": {"requests": (request(outcome="short"),)},
    "cached_tokens": {"requests": (request(cached_tokens=8),)},
}


def test_a_clean_run_counts(make_sample):
    assert void_reasons(make_sample(), BOUNDS) == ()
    assert unwatched(make_sample()) == ()
    untold = make_sample(requests=(Request(0, "ok", 0.0, completion_tokens=64),))
    assert unwatched(untold) == ("cached_tokens",)


@pytest.mark.parametrize("cause", FAULTS)
def test_each_planted_fault_voids_by_its_own_name(make_sample, cause):
    found = void_reasons(make_sample(**FAULTS[cause]), BOUNDS)
    assert [item.cause for item in found] == [cause]
    assert found[0].measured > found[0].bound


@pytest.mark.parametrize(
    "seen",
    [
        {"scheduler_cpu_slowdown": 1.7, "gpu_busy_share": 0.99},
        {"scheduler_cpu_slowdown": 1.05, "gpu_busy_share": 0.72},
        {"scheduler_cpu_slowdown": 1.0, "gpu_busy_share": 0.1},
    ],
)
def test_a_slow_cpu_counts_where_the_gpu_waited_for_it_alone(make_sample, seen):
    """A step that the GPU bounds is no slower; a GPU that waits for a quick CPU is the build's own doing."""
    assert void_reasons(make_sample(contention=QUIET | seen), BOUNDS) == ()


@pytest.mark.parametrize("missing", WAITING)
def test_a_slow_cpu_is_named_by_both_counters_or_not_at_all(make_sample, missing):
    told = {name: value for name, value in (QUIET | WAITING).items() if name != missing}
    assert void_reasons(make_sample(contention=told), BOUNDS) == ()
    assert unwatched(make_sample(contention=told)) == ("slow_cpu",)


def test_a_slow_run_alone_is_no_cause(make_sample):
    assert void_reasons(make_sample(1.0), BOUNDS) == ()


def test_absent_counters_are_named_and_not_taken_as_clean(make_sample):
    blind = make_sample(contention={"steal_s": 0.0}, audit={"lag_p99_s": None})
    assert void_reasons(blind, BOUNDS) == ()
    assert set(unwatched(blind)) == {
        "scheduler_run_delay",
        "gpu_power_throttle",
        "gpu_thermal_throttle",
        "foreign_gpu_process",
        "slow_cpu",
        "client_lag",
    }


def test_recorded_reasons_are_kept_and_not_doubled(make_sample):
    recorded = Void("steal", 0.5, 0.02, "share", "as recorded")
    sample = make_sample(contention=QUIET | {"steal_s": 0.1}, void=(recorded,))
    assert void_reasons(sample, BOUNDS) == (recorded,)


def test_too_many_void_runs_make_the_host_unfit():
    one = (Void("steal", 0.5, 0.02, "share", ""), Void("client_lag", 0.5, 0.1, "share", ""))
    few = fitness([(), one, (), ()], BOUNDS)
    many = fitness([one] * 4 + [()], BOUNDS)
    every = fitness([one], BOUNDS)
    assert (few.unfit, many.unfit, every.unfit) == (False, True, True)
    assert many.causes == {"steal": 4, "client_lag": 4}
    assert "4 of 5 runs void (bound 3)" in many.message


# --- speculation


def runs(accept: float, cycle_ms: float, rest: float = 1.0, wobble: float = 0.002) -> SpeculativeRuns:
    steps = (-1.0, 0.5, 0.0, 0.8, -0.3)
    cycles = tuple(cycle_ms * (1 + wobble * s) for s in steps)
    return SpeculativeRuns(tuple(1e3 * rest * accept / c for c in cycles), (accept,) * 5, cycles)


BEFORE = runs(2.0, 33.0)


@pytest.mark.parametrize(
    ("after", "cause", "masked"),
    [
        (runs(2.0, 33.0), "none", False),
        (runs(1.8, 33.0), "acceptance", False),
        (runs(2.0, 36.3), "cycle time", False),
        (runs(1.8, 36.3), "both", False),
        (runs(2.2, 36.3), "both", True),
        (runs(2.0, 33.0, rest=0.9), "rest", False),
    ],
)
def test_a_planted_change_is_laid_to_its_cause(after, cause, masked):
    found = attribute(BEFORE, after, limit=0.03)
    assert (found.cause, found.masked) == (cause, masked)
    mean = sum(after.output_tok_s) / sum(BEFORE.output_tok_s)
    assert found.total == pytest.approx(mean, rel=1e-3)


def test_the_masked_case_hides_in_tok_s_and_is_said():
    found = attribute(BEFORE, runs(2.2, 36.3), limit=0.03)
    assert found.total == pytest.approx(1.0, abs=0.01)
    assert found.lines()[-1].startswith("masked: accept length and cycle time moved against each other")
    assert "33 -> 36.3 ms: -9.1 % of tok/s" in found.lines()[1]


def test_one_run_a_side_names_no_cause():
    one = SpeculativeRuns((60.6,), (2.0,), (33.0,))
    found = attribute(BEFORE, one, limit=0.03)
    assert found.cause == "none"
    assert "none" in found.lines()[0]


def test_time_in_no_cycle_shows_in_the_rest():
    """The founding notes: 2.0 tokens in 30 ms are 66.7 tok/s; 60.5 were measured."""
    notes = SpeculativeRuns((60.5,), (2.0,), (30.0,))
    assert notes.rest()[0] == pytest.approx(60.5 / 66.67, rel=1e-3)


def test_runs_that_do_not_match_are_refused():
    with pytest.raises(SampleFault, match="differ in number"):
        SpeculativeRuns((1.0, 2.0), (1.0,), (1.0,))


def test_steal_is_that_of_the_schedulers_cpu_where_it_was_watched(make_sample):
    """On a machine that others use too, 18 of 80 undisturbed runs had 2 % stolen somewhere, and none of it here."""
    elsewhere = QUIET | {"stolen_share": 0.2, "scheduler_steal_share": 0.0}
    assert void_reasons(make_sample(contention=elsewhere), BOUNDS) == ()
    here = QUIET | {"stolen_share": 0.001, "scheduler_steal_share": 0.05}
    (found,) = void_reasons(make_sample(contention=here), BOUNDS)
    assert found.cause == "steal" and "the scheduler's CPU" in found.message


def test_steal_of_older_samples_is_judged_by_the_average(make_sample):
    found = void_reasons(make_sample(contention=QUIET | {"steal_s": 0.1}), VoidBounds())
    assert [item.cause for item in found] == ["steal"]
    fair = make_sample(contention=QUIET | {"steal_s": 0.1, "stolen_share": 0.01})
    assert void_reasons(fair, VoidBounds()) == ()
