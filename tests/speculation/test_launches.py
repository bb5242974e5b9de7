"""Verdicts on traces: launched as many graphs as expected, fewer, more; and what a net loss is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gate.runs import ROOT
from tests.trace.kineto import Shape, steps
from tokgate.config.profiles import Profile, load_profiles
from tokgate.config.workloads import load_workloads
from tokgate.gate.cycle.launches import judge_launches
from tokgate.gate.cycle.net_gain import judge_net_gain
from tokgate.gate.cycle.traces import Traced, read
from tokgate.gate.runs import Measured
from tokgate.load.sample import Sample
from tokgate.verdict import Kind, Verdict

Make = Callable[..., Sample]
PROFILES = load_profiles(ROOT / "perf_tests/profiles.yaml")
EAGLE = {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "attention_backend": "triton"}
# The founding cycle: 29.1 ms verify, 0.9 ms of draft, 3.0 ms that nobody looked at.
FOUNDING = Shape(verify=29_100, draft=600, extend=300, sampling=0, gap=3000, cpu_late=True)


def measured(make: Make, profile: str, accept: float | None, rate: float, **identity: object) -> Measured:
    metrics = {"decode_tok_s": rate, "step_ms_p50": 1e3 / rate}
    if accept is not None:
        metrics |= {"accept_length": accept, "cycle_ms": 1e3 * accept / rate}
    resolved = EAGLE if accept is not None else {"attention_backend": "triton"}
    samples = tuple(
        make({k: v * (1 + noise) for k, v in metrics.items()}, run=run, profile=profile,
             **{"resolved": resolved, **identity})
        for run, noise in enumerate((-0.003, 0.001, 0.002))
    )  # fmt: skip
    return Measured(samples, (), tuple(Path(f"r{n}.json") for n in range(3)))


@pytest.fixture
def traced(tmp_path: Path) -> Callable[[Shape], Traced]:
    return lambda shape: read([steps(shape, 9).write(tmp_path / "1-TP-0.trace.json.gz")])


def verdict(make: Make, name: str, trace: Traced, **identity: object) -> Verdict:
    profile: Profile = PROFILES.get(name)
    accept = 2.0 if profile.speculation else None
    return judge_launches(profile, measured(make, name, accept, 60.6, **identity), trace)


def test_three_graphs_a_cycle_are_as_expected(make_sample: Make, traced: Callable[[Shape], Traced]) -> None:
    found = verdict(make_sample, "eagle3-graphs", traced(FOUNDING))
    assert found.kind is Kind.PASS
    assert found.headline == (
        "3 cudaGraphLaunch a cycle (verify, draft, draft extend), 1 kernel a cycle outside of graphs: "
        "as expected, in each of 8 traced steps"
    )
    assert (
        "of the effective cycle 33.0 ms: 29.1 ms verify, 0.60 ms draft, 0.30 ms draft extend, "
        "3.00 ms (9 %) in no kernel (gaps: the GPU waits for the CPU to launch)"
    ) in found.body


def test_one_graph_a_step_without_speculation(make_sample: Make, traced: Callable[[Shape], Traced]) -> None:
    found = verdict(make_sample, "baseline", traced(replace(FOUNDING, speculative=False)))
    assert found.kind is Kind.PASS
    assert found.headline.startswith("1 cudaGraphLaunch a step (decode)")


def test_a_graph_that_is_captured_and_not_launched_is_named(
    make_sample: Make, traced: Callable[[Shape], Traced]
) -> None:
    """The counter of the target's passes cannot see this: the draft's graphs have none."""
    found = verdict(make_sample, "eagle3-graphs", traced(replace(FOUNDING, extend_graph=False)))
    assert found.kind is Kind.NOT_REPLAYED
    assert "3 are expected; not launched as a graph: draft extend, in 8 of 8 traced steps" in found.headline
    none = verdict(make_sample, "eagle3-graphs", traced(replace(FOUNDING, graphs=False)))
    assert none.kind is Kind.NOT_REPLAYED
    assert "not launched as a graph: verify, draft, draft extend" in none.headline


def test_two_graphs_are_right_where_draft_extend_has_none(
    make_sample: Make, traced: Callable[[Shape], Traced]
) -> None:
    fa3 = {"resolved": EAGLE | {"attention_backend": "fa3"}}
    found = verdict(make_sample, "eagle3-graphs", traced(replace(FOUNDING, extend_graph=False)), **fa3)
    assert found.kind is Kind.PASS
    assert any("draft extend with fa3 is captured from 0.5.23 on" in line for line in found.body)


def test_graphs_that_are_off_are_not_launched(make_sample: Make, traced: Callable[[Shape], Traced]) -> None:
    off = verdict(make_sample, "eagle3-eager", traced(replace(FOUNDING, graphs=False)))
    assert off.kind is Kind.PASS
    assert "off as asked" in off.headline
    on = verdict(make_sample, "eagle3-eager", traced(FOUNDING))
    assert on.kind is Kind.MISCONFIGURED


def test_no_trace_proves_nothing(make_sample: Make, traced: Callable[[Shape], Traced]) -> None:
    found = verdict(make_sample, "eagle3-graphs", Traced((), None, "the server wrote no trace"))
    assert found.kind is Kind.INCONCLUSIVE
    blind = verdict(make_sample, "eagle3-graphs", traced(replace(FOUNDING, graphs=False, spans="none")))
    assert blind.kind is Kind.INCONCLUSIVE
    assert "with_stack" in blind.headline


def test_the_cpu_engine_has_no_graphs(make_sample: Make, traced: Callable[[Shape], Traced]) -> None:
    found = verdict(make_sample, "eagle3-graphs", traced(FOUNDING), engine="cpu")
    assert found.kind is Kind.NOT_APPLICABLE


def test_the_founding_sentence(make_sample: Make, traced: Callable[[Shape], Traced]) -> None:
    """What took days by hand: the notes' own figures, with the 3 ms a cycle that they never looked at."""
    workload = load_workloads(ROOT / "perf_tests/workloads.yaml", "emulated").get("chat-bs1")
    one, other = (
        measured(make_sample, "eagle3-graphs", 2.0, 60.6),
        measured(make_sample, "baseline", None, 82.5),
    )
    found = judge_net_gain(workload, one, other, traced(FOUNDING).cycles)
    assert found.kind is Kind.NET_LOSS
    assert found.line.startswith(
        "NET_LOSS chat-bs1[eagle3-graphs] 60.6 vs 82.5 tok/s without speculation, 0.73x (95 % CI 0.73..0.74,"
    )
    assert found.body[2:7] == (
        "break-even accept length 2.72 (2.48 on the 30.0 ms that the trace shows in kernels) = cycle 33.0 ms x "
        "82.5 tok/s; measured 2.00",
        "of the effective cycle 33.0 ms: 29.1 ms verify, 0.60 ms draft, 0.30 ms draft extend, 3.00 ms (9 %) in "
        "no kernel (gaps: the GPU waits for the CPU to launch)",
        "or at accept length 2.00 a cycle of 24.2 ms",
        "nearer lever: accept length: accept length needs 36 % of the way from 2.00 to 4, cycle time 42 % of the "
        "way from 33.0 to 12.1 ms",
        "modelled from these costs (chain, verify as measured): no number of draft steps wins; 3 draft steps, as now, "
        "are best; with one chance of acceptance for all positions, since no histogram is reported",
    )
    assert found.body[7].startswith(
        "topk above 1: not modelled: what a token more costs in verify is not known"
    )


def test_without_a_trace_the_split_is_left_out(make_sample: Make) -> None:
    workload = load_workloads(ROOT / "perf_tests/workloads.yaml", "emulated").get("chat-bs1")
    one, other = (
        measured(make_sample, "eagle3-graphs", 2.0, 60.6),
        measured(make_sample, "baseline", None, 82.5),
    )
    found = judge_net_gain(workload, one, other)
    assert "break-even accept length 2.72 = cycle 33.0 ms x 82.5 tok/s; measured 2.00" in found.body
    assert not any("verify" in line for line in found.body)
