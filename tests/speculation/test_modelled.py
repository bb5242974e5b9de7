"""The model in a verdict: verify against tokens from passes of two sizes, trees held against the chain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gate.runs import ROOT
from tests.trace.kineto import Shape, steps
from tokgate.analysis.cycles import Cycles
from tokgate.config.workloads import load_workloads
from tokgate.gate.cycle.net_gain import judge_net_gain
from tokgate.gate.cycle.traces import read
from tokgate.gate.cycle.verify_passes import VerifyPasses
from tokgate.gate.runs import Measured
from tokgate.load.sample import Sample

Make = Callable[..., Sample]
Trace = Callable[[float], Cycles]
WORKLOAD = load_workloads(ROOT / "perf_tests/workloads.yaml", "emulated").get("chat-bs1")
EAGLE = {
    "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_num_draft_tokens": 4,
    "speculative_eagle_topk": 1, "attention_backend": "triton",
}  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Cycles whose verify pass takes so many microseconds."""

    def make(verify: float) -> Cycles:
        shape = Shape(verify=verify, draft=200, extend=150, sampling=0, gap=100)
        found = read([steps(shape, 9).write(tmp_path / f"{verify}-TP-0.trace.json.gz")]).cycles
        assert found is not None
        return found

    return make


def runs(make: Make, profile: str, **resolved: object) -> Measured:
    """At accept length 2.5: half of the first position's tokens that are reached are accepted again at the second."""
    metrics = {"decode_tok_s": 800.0, "accept_length": 2.5, "cycle_ms": 3.125}
    samples = []
    for run in range(3):
        sample = make(metrics, run=run, profile=profile, resolved={**EAGLE, **resolved})
        asked = sample.identity.resolved["speculative_num_steps"]
        request = replace(sample.requests[0], accept_histogram=(0, 50, 50, 0)[: asked + 1])
        samples.append(replace(sample, requests=(request,)))
    return Measured(tuple(samples), (), tuple(Path(f"{n}.json") for n in range(3)))


def modelled(make: Make, cycles: Cycles, passes: VerifyPasses, **resolved: object) -> list[str]:
    one = runs(make, "eagle3-graphs", **resolved)
    base = tuple(
        make({"decode_tok_s": 600.0 + run}, run=run, resolved={"attention_backend": "triton"})
        for run in range(3)
    )
    other = Measured(base, (), tuple(Path(f"{n}.json") for n in range(3)))
    body = judge_net_gain(WORKLOAD, one, other, cycles, passes.like(one)).body
    return [line for line in body if line.startswith(("modelled", "topk"))]


def test_passes_of_two_sizes_give_a_token_its_price(make_sample: Make, trace: Trace) -> None:
    small, large = trace(1300), trace(2000)
    passes = VerifyPasses()
    passes.add(runs(make_sample, "eagle3-graphs"), small, 1)
    passes.add(runs(make_sample, "eagle3-graphs"), large, 8)
    chain, trees = modelled(make_sample, small, passes)
    # 28 tokens more cost 0.7 ms.
    assert chain.startswith(
        "modelled from these costs (chain, verify 0.025 ms a token more, from passes of 4, 32 tokens, of other streams "
        "too): "
    )
    assert "2 draft steps would be best" in chain
    assert trees.startswith(
        "topk above 1, accept length against the chain's 2.50: topk 2 with 6 tokens is faster"
    )
    assert "topk 8 with 24 tokens is faster above 2.94" in trees
    assert trees.endswith("measure a profile with topk above 1")


def test_passes_of_as_many_streams_come_first(make_sample: Make, trace: Trace) -> None:
    """More streams bring their own keys, values and attention, which are no price of a draft token."""
    passes = VerifyPasses()
    small = trace(1300)
    passes.add(runs(make_sample, "eagle3-graphs"), small, 1)
    passes.add(runs(make_sample, "steps-5", speculative_num_draft_tokens=6), trace(1340), 1)
    passes.add(runs(make_sample, "eagle3-graphs"), trace(2000), 8)
    chain, _ = modelled(make_sample, small, passes)
    assert "(chain, verify 0.020 ms a token more, from passes of 4, 6 tokens): " in chain


def test_what_was_not_measured_is_no_advice(make_sample: Make, trace: Trace) -> None:
    """With two steps the third position is unknown: what it would give if it were like the second is told apart."""
    (chain, _) = modelled(make_sample, trace(1300), VerifyPasses(), speculative_num_steps=2)
    assert "2 draft steps, as now, are best; were positions beyond 2 accepted as 2 is, " in chain


def test_passes_of_one_size_leave_trees_open(make_sample: Make, trace: Trace) -> None:
    passes = VerifyPasses()
    small = trace(1300)
    passes.add(runs(make_sample, "eagle3-graphs"), small, 1)
    passes.add(runs(make_sample, "eagle3-graphs"), small, 1)
    assert len(passes.like(runs(make_sample, "eagle3-graphs"))) == 1
    chain, trees = modelled(make_sample, small, passes)
    assert chain.startswith("modelled from these costs (chain, verify as measured): ")
    assert trees.startswith("topk above 1: not modelled")


def test_passes_of_other_backends_or_without_graphs_lie_on_another_line(
    make_sample: Make, trace: Trace
) -> None:
    passes = VerifyPasses()
    passes.add(runs(make_sample, "a", attention_backend="flashinfer"), trace(1300), 1)
    passes.add(runs(make_sample, "b", cuda_graph_decode="disabled"), trace(1400), 1)
    passes.add(runs(make_sample, "c", speculative_attention_mode="decode"), trace(1500), 1)
    assert passes.like(runs(make_sample, "eagle3-graphs")) == []
    # Other draft steps are another number of tokens and the same line.
    passes.add(runs(make_sample, "d", speculative_num_draft_tokens=6), trace(1600), 1)
    assert [item.tokens for item in passes.like(runs(make_sample, "eagle3-graphs"))] == [6]
    passes.add(runs(make_sample, "e", speculative_num_draft_tokens=None), trace(1700), 1)
    assert len(passes.like(runs(make_sample, "eagle3-graphs"))) == 1


def test_a_measured_tree_has_its_own_curve(make_sample: Make, trace: Trace) -> None:
    tree = {"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
    cycles = trace(1300)
    passes = VerifyPasses()
    passes.add(runs(make_sample, "tree", **tree), cycles, 1)
    (line,) = modelled(make_sample, cycles, passes, **tree)
    assert line.startswith("modelled from these costs (tree of topk 4 and 8 tokens as measured): ")
