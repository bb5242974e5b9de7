"""Blocks are balanced, repeatable, stored whole or not at all, and taken up where they stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.blocks.conftest import VirtualBench
from tokgate.config.workloads import Workload
from tokgate.errors import Exited, Hang, SampleFault, UsageFault
from tokgate.gate.blocks.arms import ServerBench
from tokgate.gate.blocks.neighbours import crowded
from tokgate.gate.blocks.plan import Arm, BlockPlan
from tokgate.gate.blocks.runner import BlockRunner
from tokgate.gate.setup import Setup


def test_orders_balance_steady_and_bending_drift(plan: BlockPlan) -> None:
    orders = {plan.run_order(number, "chat-bs1") for number in range(40)}
    assert orders == {tuple("ABBABAAB"), tuple("BAABABBA")}
    for order in orders:
        for power in (1, 2):
            drift = {arm: sum(i**power for i, name in enumerate(order) if name == arm) for arm in "AB"}
            assert drift["A"] == drift["B"]


def test_orders_come_from_the_seed_alone(plan: BlockPlan) -> None:
    again = replace(plan)
    assert [plan.run_order(n, "w") for n in range(20)] == [again.run_order(n, "w") for n in range(20)]
    other = replace(plan, seed=6)
    assert [plan.run_order(n, "w") for n in range(20)] != [other.run_order(n, "w") for n in range(20)]


def test_arms_one_at_a_time_are_launched_in_turn(plan: BlockPlan) -> None:
    bench = VirtualBench(lambda arm, block: 100.0)
    runner = BlockRunner(replace(plan, together=False, runs_per_arm=2), bench, None, clock=bench.clock)
    runner.measure()
    first, second = plan.launch_order(0)
    assert bench.log == [
        *(f"start {first}", f"run {first}", f"run {first}", f"stop {first}"),
        *(f"start {second}", f"run {second}", f"run {second}", f"stop {second}"),
    ]
    assert runner.blocks[0].seconds == 2 * 60 + 4 * 5


def test_a_block_holds_the_runs_of_both_arms(plan: BlockPlan) -> None:
    bench = VirtualBench(lambda arm, block: {"A": 100.0, "B": 90.0}[arm] + block)
    runner = BlockRunner(plan, bench, None, clock=bench.clock)
    runner.measure()
    runner.measure()
    assert runner.launches("A", "chat-bs1", "output_tok_s") == [[100.0] * 4, [101.0] * 4]
    assert runner.launches("B", "chat-bs1", "output_tok_s") == [[90.0] * 4, [91.0] * 4]
    assert runner.launches("B", "startup", "startup_s") == [[60.0], [60.0]]
    assert runner.blocks[0].arms["B"].extras == {"arm": "B"}


def test_blocks_are_taken_up_from_the_folder(plan: BlockPlan, tmp_path: Path) -> None:
    bench = VirtualBench(lambda arm, block: 100.0 + block, run_sd=0.1, folder=tmp_path)
    runner = BlockRunner(plan, bench, tmp_path, clock=bench.clock)
    runner.measure()
    runner.measure()
    again = BlockRunner(plan, bench, tmp_path, clock=bench.clock)
    assert again.blocks == runner.blocks
    assert not (tmp_path / "lost").exists()


def test_a_crash_loses_only_the_block_under_way(plan: BlockPlan, tmp_path: Path) -> None:
    def crash(number: int, arm: str) -> None:
        if number == 1 and arm == "B":
            raise KeyboardInterrupt

    bench = VirtualBench(lambda arm, block: 100.0, folder=tmp_path, before_run=crash)
    runner = BlockRunner(plan, bench, tmp_path, clock=bench.clock)
    whole = runner.measure()
    with pytest.raises(KeyboardInterrupt):
        runner.measure()
    assert bench.log[-1] == "stop B+A" or bench.log[-1] == "stop A+B"
    bench.before_run = lambda number, arm: None
    again = BlockRunner(plan, bench, tmp_path, clock=bench.clock)
    assert again.blocks == [whole]
    assert list((tmp_path / "lost").rglob("*.sample.json")), "what the cut block measured is kept aside"
    second = again.measure()
    assert second.number == 1
    assert second.orders == {"chat-bs1": plan.run_order(1, "chat-bs1")}
    counted = {
        path for b in again.blocks for a in b.arms.values() for m in a.workloads.values() for path in m.files
    }
    assert set(tmp_path.glob("[AB]/samples/**/*.sample.json")) == counted


def test_another_plan_in_the_same_folder_is_refused(plan: BlockPlan, tmp_path: Path) -> None:
    bench = VirtualBench(lambda arm, block: 100.0, folder=tmp_path)
    BlockRunner(plan, bench, tmp_path).measure()
    with pytest.raises(UsageFault, match="another plan") as caught:
        BlockRunner(replace(plan, runs_per_arm=8), bench, tmp_path)
    assert caught.value.details == ("runs_per_arm: 4 there, 8 asked",)
    first, second = plan.arms
    other = replace(second, engine=replace(second.engine, version="0.5.9"))
    with pytest.raises(UsageFault, match="another plan") as caught:
        BlockRunner(replace(plan, arms=(first, other)), bench, tmp_path)
    # Not both lists whole: which of their many facts it is would have to be looked for.
    (sglang,) = [line for line in caught.value.details if "engine_digest" not in line]
    assert sglang == f"arms.{second.name}.sglang: {second.engine.version} there, 0.5.9 asked"


def test_a_damaged_block_is_not_passed_over(plan: BlockPlan, tmp_path: Path) -> None:
    bench = VirtualBench(lambda arm, block: 100.0, folder=tmp_path)
    runner = BlockRunner(plan, bench, tmp_path)
    for _ in range(3):
        runner.measure()
    second = tmp_path / "blocks" / "0001.json"
    text = second.read_text()
    second.write_text(text[: len(text) // 2])
    with pytest.raises(SampleFault, match="not JSON"):
        BlockRunner(plan, bench, tmp_path)
    second.write_text(json.dumps({**json.loads(text), "arms": 3}))
    with pytest.raises(SampleFault, match="not a block"):
        BlockRunner(plan, bench, tmp_path)
    second.write_text(text.replace('"A/samples/', '"../A/samples/', 1))
    with pytest.raises(SampleFault, match=r"names '\.\./A/samples/.*', which is not below it"):
        BlockRunner(plan, bench, tmp_path)
    second.write_text(text)
    assert len(BlockRunner(plan, bench, tmp_path).blocks) == 3


def test_the_failing_arm_is_named(plan: BlockPlan) -> None:
    def hang(number: int, arm: str) -> None:
        if arm == "B":
            raise Hang("no progress", waited_s=1, limit_s=1)

    bench = VirtualBench(lambda arm, block: 100.0, before_run=hang)
    runner = BlockRunner(plan, bench, None)
    with pytest.raises(Hang):
        runner.measure()
    assert runner.failed == "B"
    assert runner.blocks == []


def test_only_the_asked_workloads_are_measured(plan: BlockPlan, workloads: dict[str, Workload]) -> None:
    wide = replace(plan, workloads=(workloads["chat-bs1"], workloads["chat-bs4"]))
    bench = VirtualBench(lambda arm, block: 100.0)
    runner = BlockRunner(wide, bench, None)
    runner.measure()
    runner.measure(["chat-bs4"])
    assert [len(runner.launches("A", name, "output_tok_s")) for name in ("chat-bs1", "chat-bs4")] == [1, 2]
    with pytest.raises(ValueError, match="none of the planned"):
        runner.measure(["chat-bs9"])


@pytest.mark.parametrize("together", [True, False])
def test_real_servers_of_the_emulator(plan: BlockPlan, setup: Setup, tmp_path: Path, together: bool) -> None:
    plan = replace(plan, runs_per_arm=2, together=together)
    bench = ServerBench(setup, plan, tmp_path, lambda arm, server, started: {"pid": server.pid})
    block = BlockRunner(plan, bench, tmp_path).measure()
    launches = {
        name: {s.identity.launch for m in arm.workloads.values() for s in m.samples}
        for name, arm in block.arms.items()
    }
    assert all(len(found) == 1 for found in launches.values())
    assert launches["A"] != launches["B"]
    assert [len(arm.workloads["chat-bs1"].samples) for arm in block.arms.values()] == [2, 2]
    assert block.arms["A"].workloads["startup"].series("startup_s")[0] > 0
    pids = [arm.extras["pid"] for arm in block.arms.values()]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "servers are gone after the block"
    assert BlockRunner(plan, bench, tmp_path).blocks == [block]


def test_a_server_that_does_not_start_leaves_none_behind(
    plan: BlockPlan, setup: Setup, tmp_path: Path
) -> None:
    broken = replace(setup, request=replace(setup.request, faults=("start-exit:weights",)))
    bench = ServerBench(broken, plan, tmp_path)
    runner = BlockRunner(plan, bench, tmp_path)
    with pytest.raises(Exited, match="weights"):
        runner.measure()
    assert runner.failed in ("A", "B")
    assert runner.blocks == []


@pytest.mark.parametrize("given", ["abc", "", "nan", "0", "1.5"])
def test_a_share_of_memory_that_is_none_is_said(setup: Setup, given: str) -> None:
    engine = replace(setup.engine, kind="gpu")
    arms = [Arm(name, engine, setup.profiles["baseline"]) for name in "AB"]

    def asked(flag: str) -> Setup:
        return replace(setup, engine=engine, request=replace(setup.request, engine_flags=(flag,)))

    with pytest.raises(UsageFault, match="--mem-fraction-static is above 0 and below 1, not"):
        crowded(asked(f"--mem-fraction-static={given}"), arms)
    assert crowded(asked("--mem-fraction-static=0.4"), arms) is None


def test_shares_of_memory_are_those_of_the_profiles_unless_a_flag_gives_one(setup: Setup) -> None:
    engine = replace(setup.engine, kind="gpu")
    profile = replace(setup.profiles["baseline"], mem_fraction=0.4)

    def fit(*flags: str, mem_fraction: float | None = 0.4) -> str | None:
        arms = [Arm(name, engine, replace(profile, mem_fraction=mem_fraction)) for name in "AB"]
        asked = replace(setup, engine=engine, request=replace(setup.request, engine_flags=flags))
        return crowded(asked, arms)

    assert fit() is None
    assert fit("--sleep-on-idle") is None
    assert "120 % of the GPU's memory" in (fit(mem_fraction=0.6) or "")
    assert "120 % of the GPU's memory" in (fit("--mem-fraction-static", "0.6") or "")
    assert "whole GPU" in (fit(mem_fraction=None) or "")
    assert fit("--mem-fraction-static", "0.3", "--sleep-on-idle", mem_fraction=None) is None
