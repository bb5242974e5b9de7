"""Budgets are spent where a verdict is open, and no block is begun that would not end in time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.blocks.conftest import VirtualBench
from tokgate.analysis.looks import History, Plan
from tokgate.config.workloads import Workload
from tokgate.gate.blocks.deciding import Deciding, Question, spend
from tokgate.gate.blocks.plan import BlockPlan
from tokgate.gate.blocks.runner import BlockRunner

TEST = Plan(0.03, "higher", alpha=0.001)
HISTORY = History(0.01, 20)


def asked(plan: BlockPlan, bench: VirtualBench, history: History | None = HISTORY) -> Deciding:
    runner = BlockRunner(plan, bench, None, clock=bench.clock)
    questions = [Question(w.name, "output_tok_s", TEST, history) for w in plan.workloads]
    return Deciding(runner, questions)


def noisy(loss: float, launch_sd: float = 0.007, seed: int = 1) -> VirtualBench:
    draw = random.Random(seed)
    return VirtualBench(
        lambda arm, block: 100 * (1 - loss * (arm == "B")) * (1 + draw.gauss(0, launch_sd)), run_sd=0.01
    )


def test_no_change_passes_and_a_loss_is_found(plan: BlockPlan) -> None:
    for loss, kind in ((0.0, "PASS"), (0.1, "REGRESSION")):
        bench = noisy(loss)
        deciding = asked(plan, bench)
        spent = spend([deciding], clock=bench.clock)
        assert spent.reason == "decided"
        assert [d.kind for d in deciding.decisions().values() if d] == [kind]
        assert spent.blocks == len(deciding.runner.blocks) < 12


def test_no_block_is_begun_that_would_not_end_in_time(plan: BlockPlan) -> None:
    bench = noisy(0.015)
    deciding = asked(plan, bench)
    spent = spend([deciding], minutes=6, clock=bench.clock)
    # A block takes 60 s to start and eight runs of 5 s: three of them fit into 360 s, four do not.
    assert (spent.reason, spent.blocks, spent.seconds) == ("minutes", 3, 300)
    assert deciding.open() == {"chat-bs1": deciding.decisions()[deciding.questions[0]].blocks_needed}  # type: ignore[union-attr]


def test_the_plan_ends_at_its_last_block(plan: BlockPlan) -> None:
    bench = noisy(0.015)
    spent = spend([asked(plan, bench)], blocks_max=4, clock=bench.clock)
    assert (spent.reason, spent.blocks) == ("blocks", 4)


def test_blocks_go_where_a_verdict_is_open(plan: BlockPlan, workloads: dict[str, Workload]) -> None:
    wide = replace(plan, workloads=(workloads["chat-bs1"], workloads["chat-bs4"]))
    bench = noisy(0.1)
    runner = BlockRunner(wide, bench, None, clock=bench.clock)
    # With a scatter of 20 % nothing can be said of the second workload.
    vague = Question("chat-bs4", "output_tok_s", TEST, History(0.2, 20))
    deciding = Deciding(runner, [Question("chat-bs1", "output_tok_s", TEST, HISTORY), vague])
    spend([deciding], blocks_max=8, clock=bench.clock)
    counts = {name: len(runner.launches("A", name, "output_tok_s")) for name in ("chat-bs1", "chat-bs4")}
    assert counts["chat-bs1"] < counts["chat-bs4"] == 8


def test_the_nearest_to_a_decision_comes_first(plan: BlockPlan) -> None:
    clear, vague = noisy(0.0), noisy(0.02, launch_sd=0.03)
    vague.clock = clear.clock  # type: ignore[method-assign]
    first, second = asked(plan, clear), asked(plan, vague, History(0.04, 20))
    # Both get their first block; what can be decided is, before the rest of the budget goes to the vague one.
    spend([second, first], minutes=100, blocks_max=6, clock=clear.clock)
    assert first.open() == {}
    assert len(first.runner.blocks) < 6 == len(second.runner.blocks)


def test_a_decision_stands_when_more_blocks_come(plan: BlockPlan) -> None:
    bench = noisy(0.1)
    deciding = asked(plan, bench)
    spend([deciding], clock=bench.clock)
    before = deciding.decisions()
    bench.speed = lambda arm, block: 100.0
    for _ in range(5):
        deciding.runner.measure()
    assert deciding.decisions() == before
    # As it does for one who reads the stored blocks later.
    assert Deciding(deciding.runner, deciding.questions).decisions() == before


def test_a_metric_that_no_block_has_is_no_reason_to_go_on(plan: BlockPlan) -> None:
    bench = noisy(0.0)
    runner = BlockRunner(plan, bench, None, clock=bench.clock)
    deciding = Deciding(runner, [Question("chat-bs1", "accept_length", TEST)])
    assert deciding.open() == {"chat-bs1": 3}
    assert spend([deciding], clock=bench.clock).blocks == 1
    assert deciding.decisions() == {deciding.questions[0]: None}


@pytest.mark.parametrize(("history", "count"), [(HISTORY, 200), (None, 60)])
def test_many_virtual_bumps_are_quick(plan: BlockPlan, history: History | None, count: int) -> None:
    alarms = undecided = 0
    for seed in range(count):
        bench = noisy(0.0, seed=seed)
        deciding = asked(plan, bench, history)
        spend([deciding], clock=bench.clock)
        kinds = [d.kind for d in deciding.decisions().values() if d]
        alarms += kinds == ["REGRESSION"]
        undecided += kinds == ["INCONCLUSIVE"]
    assert alarms <= 2
    assert undecided <= count / 10
