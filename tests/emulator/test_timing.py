"""Timing: the figures of the packaged scenarios, and their noise."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from tokgate.emulator.scenario import Scenario
from tokgate.emulator.timing import Timing


def timing_of(name: str, condition: str, seed: int | None = None, **costs: Any) -> Timing:
    plan = Scenario(name, []).plan(condition)
    plan["costs"] |= costs
    return Timing(plan, seed)


def test_founding_figures() -> None:
    baseline = timing_of("founding", "baseline")
    assert 1 / baseline.step_s(1) == pytest.approx(82.5, rel=0.005)
    eagle = timing_of("founding", "eagle3")
    assert eagle.cycle_ms == pytest.approx(33.0)
    assert eagle.kernels_ms["verify"] == 29.1
    assert eagle.kernels_ms["draft"] + eagle.kernels_ms["draft_extend"] == pytest.approx(0.9)
    assert 2.0 / eagle.step_s(1) == pytest.approx(60.6, rel=0.001)
    assert 2.0 / timing_of("founding", "eagle3_eager").step_s(1) == pytest.approx(45, rel=0.02)
    assert timing_of("founding", "eagle3_attention_decode").cycle_ms == eagle.cycle_ms
    first = timing_of("founding-first-day", "eagle3")
    assert 2.1 / first.step_s(1) == pytest.approx(74.9, rel=0.005)
    assert 2.1 / timing_of("founding-first-day", "eagle3_eager").step_s(1) == pytest.approx(53.2, rel=0.005)
    assert 1 / timing_of("founding-first-day", "baseline").step_s(1) == pytest.approx(90, rel=0.005)


def test_founding_runs_scatter_as_recorded_and_repeat() -> None:
    def speeds(seed: int | None) -> list[float]:
        timing = timing_of("founding", "eagle3", seed)
        found = []
        for _ in range(5):
            timing.new_run()
            found.append(2.0 / timing.step_s(1))
        return found

    assert speeds(None) == pytest.approx([60.4, 65.5, 50.9, 61.5, 59.5], rel=0.001)
    assert speeds(None) == speeds(None)
    assert speeds(1) == speeds(1) != speeds(2)


def test_noise_has_the_asked_spread() -> None:
    noise = {"kind": "lognormal", "sd": 0.09, "speeds": []}
    timing = timing_of("steady", "baseline", 3, noise=noise)
    factors = []
    for _ in range(2000):
        timing.new_run()
        factors.append(timing.step_s(1) / 0.004)
    assert statistics.stdev(factors) == pytest.approx(0.09, rel=0.1)
    slow = timing_of("steady", "baseline", 3, noise={"kind": "one-sided", "sd": 0.05, "speeds": []})
    for _ in range(50):
        slow.new_run()
        assert slow.step_s(1) >= 0.004


def test_launches_differ_by_seed_only() -> None:
    steps = [timing_of("steady", "baseline", seed, launch_sd=0.05).step_s(1) for seed in range(200)]
    assert statistics.stdev(steps) / 0.004 == pytest.approx(0.05, rel=0.2)
    assert timing_of("steady", "baseline", 5, launch_sd=0.05).step_s(1) == steps[5]
    assert timing_of("steady", "baseline", 5).step_s(1) == 0.004
    assert timing_of("steady", "baseline", None, launch_sd=0.05).step_s(1) == 0.004


def test_a_batch_costs_a_little_more() -> None:
    timing = timing_of("steady", "baseline", batch_percent=2.0)
    assert timing.step_s(8) == pytest.approx(0.004 * 1.14)
