"""GPUs are watched beside every run on a GPU engine; a dead NVML holds nothing up."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.blocks.conftest import VirtualBench
from tests.host.fake_nvml import nvml_of
from tests.host.test_canary import scheduler, until_it_has_looked
from tokgate.analysis.voids import void_reasons
from tokgate.config.gate import VoidBounds
from tokgate.gate import watch
from tokgate.gate.blocks.measured import MeasuredArm
from tokgate.gate.blocks.plan import BlockPlan
from tokgate.gate.blocks.runner import BlockRunner
from tokgate.gate.runs import Measured
from tokgate.gate.setup import Setup
from tokgate.gate.watch import Blind, Watch
from tokgate.host import gpu, proc
from tokgate.host.contention import difference
from tokgate.load.sample import Audit, Identity, Sample

WHO = Identity(
    "gpu", "g", "0.5", "h200", "baseline", "p", "chat-bs1", "w", "m", "l", 0, "2026-01-01T00:00:00+00:00"
)


def on_gpu(setup: Setup, monkeypatch: pytest.MonkeyPatch, card: dict[str, Any]) -> Setup:
    monkeypatch.setattr(gpu, "open_nvml", lambda: nvml_of(card))
    return replace(setup, engine=replace(setup.engine, kind="gpu"))


def causes(watched: Watch, change: dict[str, Any], card: dict[str, Any]) -> set[str]:
    """What voids a run during which a GPU's counters went from one card to the other."""
    before = watched.snapshot([os.getpid()])
    watched._gpus = (nvml_of({**card, **change}), [0])
    counted = difference(before, watched.snapshot([os.getpid()])) | {"interval_s": 1.0, "stolen_share": 0.0}
    counted["scheduler_run_delay_s"] = 0.0
    sample = Sample(WHO, (), Audit("kernel"), {}, 1.0, contention=counted)
    return {reason.cause for reason in void_reasons(sample, VoidBounds())}


def test_throttling_and_foreign_processes_void_a_run_and_quiet_gpus_do_not(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = os.getpid(), os.getppid()
    card = {"processes": [(own, 100)], "violation_ns": (0, 0)}
    watched = Watch(on_gpu(setup, monkeypatch, card), beside=lambda: [])
    assert causes(watched, {}, card) == set()
    assert causes(watched, {"violation_ns": (500_000_000, 0)}, card) == {"gpu_power_throttle"}
    watched = Watch(on_gpu(setup, monkeypatch, card), beside=lambda: [])
    assert causes(watched, {"processes": [(own, 100), (other, 9)]}, card) == {"foreign_gpu_process"}
    watched = Watch(on_gpu(setup, monkeypatch, card), beside=lambda: [other])
    assert causes(watched, {"processes": [(own, 100), (other, 9)]}, card) == set()


def test_an_nvml_that_hangs_is_given_up(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watch(on_gpu(setup, monkeypatch, {"processes": []}), beside=lambda: [])
    never = threading.Event()
    monkeypatch.setattr(watch, "NVML_S", 0.1)
    asked: list[int] = []

    class Hanging:
        def throttle_s(self, indices: list[int]) -> dict[tuple[int, str], float]:
            asked.append(1)
            never.wait(20)
            return {}

        def processes(self, index: int) -> None:
            return None

    watched._gpus = (Hanging(), [0])  # type: ignore[assignment]
    found = watched.snapshot([os.getpid()])
    assert found.foreign is None and found.throttle_s == {}
    watched.snapshot([os.getpid()])
    # A thread may begin so late that it had not even asked when it was given up.
    held = [thread for thread in threading.enumerate() if thread.name == "tokgate-nvml"]
    never.set()
    for thread in held:
        thread.join(20)
    assert asked == [1]


def test_the_schedulers_cpu_is_watched_on_a_gpu_engine_and_no_other_process(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watch(on_gpu(setup, monkeypatch, {}), beside=lambda: [])
    own = proc.read(os.getpid())
    assert own is not None
    with scheduler(max(os.sched_getaffinity(0))) as pid:
        driver = proc.read(pid)
        assert driver is not None
        with watched.during([own, driver]) as found:
            assert found == {} and watched._canary is not None
            began = time.monotonic()
            until_it_has_looked(watched._canary)
            took_s = time.monotonic() - began
        with watched.during([own]) as without:
            time.sleep(0.1)
    watched.close()
    assert found["scheduler_cpu_slowdown"] > 0.5 and found["interval_s"] >= took_s
    assert "scheduler_cpu_slowdown" not in without and without["interval_s"] >= 0.1


def test_other_engines_have_no_gpu_to_watch(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "open_nvml", lambda: pytest.fail("not asked for an emulated engine"))
    watched = Watch(setup, beside=lambda: [])
    assert watched.snapshot([]).foreign is None
    with scheduler(max(os.sched_getaffinity(0))) as pid:
        driver = proc.read(pid)
        assert driver is not None
        with watched.during([driver]) as found:
            pass
    assert watched._canary is None and "scheduler_cpu_slowdown" not in found


@pytest.mark.parametrize(
    ("kind", "absent", "named"),
    [
        ("gpu", "foreign_gpu_processes", ["foreign_gpu_process"]),
        ("emulated", "foreign_gpu_processes", []),
        ("emulated", "stolen_share", ["steal"]),
        ("gpu", "scheduler_cpu_slowdown", ["slow_cpu"]),
        ("gpu", "gpu_busy_share", ["slow_cpu"]),
        ("emulated", "gpu_busy_share", []),
        ("gpu", None, []),
    ],
)
def test_what_was_not_watched_is_said(kind: str, absent: str | None, named: list[str]) -> None:
    counters = {
        "scheduler_run_delay_s": 0.0,
        "gpu_power_throttle_s": 0.0,
        "gpu_thermal_throttle_s": 0.0,
        "foreign_gpu_processes": 0.0,
        "stolen_share": 0.0,
        "scheduler_cpu_slowdown": 1.0,
        "gpu_busy_share": 1.0,
    }
    blind = Blind(kind)
    for missing in (None, absent):
        kept = {name: value for name, value in counters.items() if name != missing}
        blind.add(Sample(WHO, (), Audit("kernel", lag_p99_s=0.0), {}, 1.0, contention=kept))
    assert [line.partition(":")[0] for line in blind.remarks()] == named
    assert all("not watched in 1 of 2 runs" in line for line in blind.remarks())


def test_blocks_name_what_was_not_watched_and_only_that(plan: BlockPlan) -> None:
    """The virtual bench counts nothing; one that counts everything is named for nothing."""
    counters = {"scheduler_run_delay_s": 0.0, "stolen_share": 0.0, "foreign_gpu_processes": 0.0}
    counters |= {"gpu_power_throttle_s": 0.0, "gpu_thermal_throttle_s": 0.0}
    one_workload = replace(plan, workloads=plan.workloads[:1], runs_per_arm=1)
    uncounted = BlockRunner(one_workload, VirtualBench(lambda arm, n: 900), None)
    uncounted.measure()
    told = uncounted.remarks
    assert [line.partition(":")[0] for line in told] == ["client_lag", "scheduler_run_delay", "steal"]
    assert all("not watched in 2 of 2 runs" in line for line in told)

    (block,) = uncounted.blocks
    counted = BlockRunner(one_workload, VirtualBench(lambda arm, n: 900), None)
    counted.blocks.append(
        replace(block, arms={name: _counted(arm, counters) for name, arm in block.arms.items()})
    )
    assert counted.remarks == []


def _counted(arm: MeasuredArm, counters: dict[str, float]) -> MeasuredArm:
    def known(measured: Measured) -> Measured:
        audit = Audit("kernel", lag_p99_s=0.0)
        runs = tuple(replace(s, contention=counters, audit=audit) for s in measured.samples)
        return replace(measured, samples=runs)

    return MeasuredArm({name: known(measured) for name, measured in arm.workloads.items()})
