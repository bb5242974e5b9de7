"""A slow CPU: a passing one is waited out, a lasting one is told, and a build that needs the CPU keeps its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.blocks.conftest import CONFIG, VirtualBench
from tests.blocks.test_settling import ASKED, OPEN, WHO, Bench, settling
from tokgate import accepting
from tokgate.config.engine import emulated_engine
from tokgate.config.gate import load_gate
from tokgate.errors import HostFault
from tokgate.gate.blocks.plan import BlockPlan
from tokgate.gate.blocks.runner import BlockRunner
from tokgate.gate.judge import Judge
from tokgate.gate.measurement import PATIENCE
from tokgate.gate.runs import Measured, Runs
from tokgate.gate.setup import Setup
from tokgate.load.sample import Audit, Sample, Void
from tokgate.verdict import Kind

SLOW = Void("slow_cpu", 1.5, 1.15, "x", "fixed work on the scheduler's CPU took 1.50 x")
STOLEN = Void("steal", 0.1, 0.02, "share", "the hypervisor took it")


def runs(reasons: Sequence[tuple[Void, ...]], *, patience: int = PATIENCE, bound: int = 0) -> Runs:
    """Runs that meet these reasons in turn, and then none."""

    def measure(number: int) -> Sample:
        void = reasons[number] if number < len(reasons) else ()
        return Sample(replace(WHO, run=number), (), Audit("user"), {"output_tok_s": 90.0}, 1.0, void=void)

    return Runs(
        measure,
        lambda s: Path(f"{s.identity.run}.json"),
        bound=bound,
        subject=("p", "w", Path()),
        patience=patience,
    )


def test_a_passing_one_is_waited_out() -> None:
    found = runs([(SLOW,), (), (SLOW,)])
    for _ in range(4):
        found.one()
    assert [s.identity.run for s in found.measured.samples] == [1, 3, 4, 5]
    assert len(found.measured.void) == 2 and not any(s.advisory for s in found.measured.samples)


def test_one_that_stays_is_told_and_never_too_many() -> None:
    found = runs([(SLOW,)] * 20)
    for _ in range(5):
        found.one()
    assert len(found.measured.void) == PATIENCE and len(found.measured.samples) == 5
    assert all(s.advisory == (SLOW,) and not s.void for s in found.measured.samples)


def test_other_causes_void_as_ever_beside_it() -> None:
    found = runs([(SLOW, STOLEN)] * 20, patience=0, bound=2)
    with pytest.raises(HostFault, match="3 of 3 runs are void"):
        found.one()


def test_in_blocks_nothing_is_set_aside_and_it_is_named(plan: BlockPlan) -> None:
    bench = VirtualBench(lambda arm, n: 900, void=lambda arm: (SLOW,) if arm == "B" else ())
    runner = BlockRunner(replace(plan, workloads=plan.workloads[:1], runs_per_arm=2), bench, None)
    runner.measure()
    arm = runner.blocks[0].arms["B"].workloads[plan.workloads[0].name]
    assert len(arm.samples) == 2 and not arm.void
    assert (
        "slow_cpu: 0 of 2 runs of arm A, 2 of 2 runs of arm B; runs of the arms interleave" in runner.remarks
    )
    calm = BlockRunner(runner.plan, VirtualBench(lambda arm, n: 900), None)
    calm.measure()
    assert not any(line.startswith("slow_cpu") for line in calm.remarks)


def test_a_build_that_keeps_the_gpu_waiting_is_a_regression_on_a_slow_host(
    setup: Setup, tmp_path: Path
) -> None:
    """Its GPU waits because of what was built in, so every run of it has the cause; none of them is lost."""
    request = replace(setup.request, budget_minutes=60.0, reference_engine="emulated:steady")
    settled = replace(setup, request=request, reference=emulated_engine("steady"))
    bench = Bench(0.1)
    bench.bench.void = lambda arm: (SLOW,) if arm == "B" else ()
    found = settling(settled, tmp_path, bench)
    verdict = found.build(OPEN, ASKED, [ASKED], tuple(settled.workloads.values()))
    assert verdict.kind is Kind.REGRESSION
    assert any("slow_cpu" in line and "of arm B" in line for line in found.remarks)


@pytest.mark.parametrize(
    ("slowed", "kind"), [(0, Kind.REGRESSION), (2, Kind.REGRESSION), (3, Kind.INCONCLUSIVE)]
)
def test_a_loss_against_stored_sessions_is_not_laid_to_a_build_on_a_slow_cpu(
    tmp_path: Path, slowed: int, kind: Kind
) -> None:
    gate = load_gate(CONFIG / "gate.yaml")

    def sample(value: float, run: int, slow: bool = False) -> Sample:
        found = Sample(replace(WHO, run=run), (), Audit("user"), {"output_tok_s": value}, 1.0)
        return replace(found, advisory=(SLOW,)) if slow else found

    for day in range(1, 13):
        recorded = [sample(90 + 0.1 * (day % 3) + 0.01 * run, run) for run in range(5)]
        at = f"2026-01-{day:02d}T00:00:00+00:00"
        accepting.accept(
            tmp_path,
            [replace(s, identity=replace(s.identity, started_at=at)) for s in recorded],
            run=f"r{day}",
            reason="x",
            metrics=["output_tok_s"],
            new_epoch=False,
            tokgate_version="0",
        )
    now = tuple(sample(60 + 0.01 * run, run, run < slowed) for run in range(5))
    measured = Measured(now, (), tuple(Path(f"{n}.json") for n in range(5)))
    verdict = Judge(gate, tmp_path, "tokgate accept", 1).against_baseline(measured, "output_tok_s")
    assert verdict.kind is kind
    assert verdict.evidence["beyond_limit"] is True, "so it is not green either"
    assert any("hold it against a reference build" in line for line in verdict.body) == (slowed == 3)
