"""Verdicts from made-up Samples: what the emulated engine cannot be asked to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tokgate.config.gate import GateFile, Limit
from tokgate.config.profiles import Profile, Speculation, load_profiles
from tokgate.config.workloads import load_workloads
from tokgate.gate.comparisons import Comparisons
from tokgate.gate.cycle.net_gain import judge_net_gain
from tokgate.gate.facts import ServerFacts
from tokgate.gate.pairs import eager_partner, prefill_partner
from tokgate.gate.runs import Measured
from tokgate.load.sample import Request, Sample
from tokgate.verdict import Kind, Verdict, exit_code

SUITE = Path(__file__).parents[2] / "perf_tests"
WORKLOAD = load_workloads(SUITE / "workloads.yaml", "emulated").get("chat-bs1")
EAGLE = {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "attention_backend": "triton"}
QUIET = (100.0, 100.2, 99.8, 100.1)
COMPARISONS = Comparisons(
    GateFile(
        metrics={
            "output_tok_s": Limit(unit="tok/s", better="higher", limit_percent=3),
            "accept_length": Limit(unit="tokens", better="higher", limit_percent=1),
        }
    )
)
Maker = Callable[..., Measured]


@pytest.fixture
def runs(make_sample: Callable[..., Sample]) -> Maker:
    """Runs at the given speeds, with verify counts, counters and resolved arguments."""

    def make(
        speeds: tuple[float, ...] = QUIET,
        counters: dict[str, float] | None = None,
        verifies: tuple[int, ...] | None = (24,),
        ids: tuple[int, ...] = (1, 2, 3),
        **identity: Any,
    ) -> Measured:
        requests = tuple(
            Request(
                index=i, outcome="ok", intended_s=0.0, completion_tokens=49, verify_count=v, output_ids=ids
            )
            for i, v in enumerate(verifies or ())
        )
        metrics = {"decode_tok_s": 0.0}
        if verifies:
            metrics["accept_length"] = 48 * len(verifies) / sum(verifies)
        samples = tuple(
            replace(
                make_sample(metrics | {"decode_tok_s": speed}, run=run, **{"resolved": EAGLE, **identity}),
                requests=requests,
                counters=counters or {},
            )
            for run, speed in enumerate(speeds)
        )
        return Measured(samples, (), tuple(Path(f"{n}.json") for n in range(len(samples))))

    return make


def facts(hybrid: bool | None = False, architectures: tuple[str, ...] = ("LlamaForCausalLM",)) -> ServerFacts:
    return ServerFacts({"target-verify": ("",)}, hybrid, architectures, Path("server.log"))


def counted(graph: float, eager: float) -> dict[str, float]:
    return {
        "decode_graph_passes": graph,
        "decode_eager_passes": eager,
        "prefill_graph_passes": 0,
        "prefill_eager_passes": 1,
    }


def eagle(**changes: Any) -> Profile:
    return Profile(name="eagle3-graphs", speculation=Speculation(steps=3, topk=1), **changes)


def test_pairs_of_the_shipped_profiles() -> None:
    profiles = load_profiles(SUITE / "profiles.yaml").profiles
    known = profiles.values()
    partners = {name: p.name for name, one in profiles.items() if (p := eager_partner(one, known))}
    assert partners["baseline"] == "baseline-eager"
    assert partners["eagle3-graphs"] == "eagle3-eager"
    assert not {"baseline-eager", "eagle3-eager"} & set(partners)
    modes = {name: p.name for name, one in profiles.items() if (p := prefill_partner(one, known))}
    assert modes == {"eagle3-attn-decode": "eagle3-graphs"}
    changed = replace(profiles["eagle3-eager"], mem_fraction=0.3)
    assert eager_partner(profiles["eagle3-graphs"], [changed]) is None


def test_the_cpu_engine_has_no_graphs(runs: Maker) -> None:
    verdict = COMPARISONS.replay(WORKLOAD, eagle(), runs(engine="cpu"), facts())
    assert verdict.kind is Kind.NOT_APPLICABLE


def test_a_capture_that_the_log_does_not_show_is_undecided(runs: Maker) -> None:
    verdict = COMPARISONS.replay(WORKLOAD, eagle(), runs(counters=counted(24, 0)), facts())
    assert verdict.kind is Kind.INCONCLUSIVE
    assert "draft-decode: no capture in the log; draft-extend: no capture in the log" in verdict.headline
    no_log = replace(facts(), captures=None)
    verdict = COMPARISONS.replay(WORKLOAD, eagle(), runs(counters=counted(24, 0)), no_log)
    assert verdict.kind is Kind.INCONCLUSIVE
    assert "could not be read" in verdict.headline


def test_graphs_that_run_against_the_profile_are_misconfigured(runs: Maker) -> None:
    verdict = COMPARISONS.replay(
        WORKLOAD, eagle(cuda_graphs=False), runs(counters=counted(24, 0)), replace(facts(), captures={})
    )
    assert verdict.kind is Kind.MISCONFIGURED
    off = runs(counters=counted(0, 24), resolved=EAGLE | {"cuda_graph_decode": "disabled"})
    verdict = COMPARISONS.replay(WORKLOAD, eagle(), off, replace(facts(), captures={}))
    assert verdict.kind is Kind.MISCONFIGURED
    assert "resolved them to disabled" in verdict.headline


@pytest.mark.parametrize(
    ("off", "kind", "words"),
    [
        ({}, Kind.PASS, "verify passes equal in 1 request"),
        ({"verifies": (30,)}, Kind.DIVERGED, "1 request gave the same output"),
        ({"verifies": (30,), "ids": (1, 2, 4)}, Kind.INCONCLUSIVE, "see greedy parity"),
        ({"verifies": None}, Kind.INCONCLUSIVE, "not reported by both"),
    ],
)
def test_accept_length_with_and_without_graphs(
    off: dict[str, Any], kind: Kind, words: str, runs: Maker
) -> None:
    slower = tuple(value / 2 for value in QUIET)
    verdict = COMPARISONS.graphs(runs(), runs(slower, profile="eagle3-eager", **off))
    assert verdict.kind is kind, verdict.text()
    assert words in verdict.text()


def test_one_count_in_many_that_differs_within_the_limit_is_no_proof(runs: Maker) -> None:
    """Rounding in a draft can turn one proposal; the limit of accept length says how much matters."""
    many = (24,) * 40
    verdict = COMPARISONS.graphs(runs(verifies=many), runs((50.0, 51.0), verifies=(*many[1:], 25)))
    assert verdict.kind is Kind.INCONCLUSIVE
    assert "1 request gave the same output in another number" in verdict.headline


def test_equal_speed_with_graphs_says_what_could_have_been_seen(runs: Maker) -> None:
    verdict = COMPARISONS.graphs(runs(), runs(profile="eagle3-eager"))
    assert verdict.kind is Kind.INCONCLUSIVE
    assert "no difference detectable (smallest detectable" in verdict.headline


def test_servers_that_resolved_otherwise_are_not_compared(runs: Maker) -> None:
    other = runs(resolved=EAGLE | {"max_running_requests": 48}, profile="eagle3-eager")
    mine = runs(resolved=EAGLE | {"max_running_requests": 64})
    assert COMPARISONS.graphs(mine, other).kind is Kind.INCOMPARABLE
    assert COMPARISONS.attention_mode(mine, other, facts(hybrid=True)).kind is Kind.INCOMPARABLE


def test_attention_mode(runs: Maker) -> None:
    real = facts(architectures=("DeepseekV3ForCausalLM",))
    same = COMPARISONS.attention_mode(runs(), runs(), real)
    assert same.kind is Kind.PASS
    assert "no difference larger than 3 % (smallest detectable" in same.headline
    faster = COMPARISONS.attention_mode(runs(tuple(1.1 * v for v in QUIET)), runs(), real)
    assert (faster.kind, "mode decode is faster" in faster.headline) == (Kind.PASS, True)
    noisy = COMPARISONS.attention_mode(runs((100.0, 120.0, 80.0)), runs(), real)
    assert noisy.kind is Kind.INCONCLUSIVE
    alone = COMPARISONS.attention_mode(runs(), None, real)
    assert alone.kind is Kind.INCONCLUSIVE
    assert COMPARISONS.attention_mode(runs(), runs(), facts()).kind is Kind.VACUOUS
    assert COMPARISONS.attention_mode(runs(), None, facts()).kind is Kind.VACUOUS


def test_an_attention_mode_of_unknown_effect_never_passes(runs: Maker) -> None:
    split = EAGLE | {"prefill_attention_backend": "flashinfer", "decode_attention_backend": "triton"}
    verdict = COMPARISONS.attention_mode(runs(resolved=split), runs(resolved=split), facts(hybrid=False))
    assert verdict.kind is Kind.INCONCLUSIVE
    assert "cannot be told" in verdict.headline


REAL = facts(architectures=("DeepseekV3ForCausalLM",))
BESIDE = Verdict(Kind.PASS, "w[p]", "")


@pytest.mark.parametrize(
    "judge",
    [
        lambda one, other: judge_net_gain(WORKLOAD, one, other),
        COMPARISONS.graphs,
        lambda one, other: COMPARISONS.attention_mode(one, other, REAL),
    ],
    ids=["net gain", "graphs", "attention mode"],
)
def test_a_loss_beyond_the_limit_that_noise_hides_is_not_green(
    judge: Callable[[Measured, Measured], Verdict], runs: Maker
) -> None:
    """One run a side decides nothing; a tenth of the speed must not look green for that."""
    slow = judge(runs((10.0,)), runs((100.0,)))
    assert slow.kind is Kind.INCONCLUSIVE, slow.text()
    assert "-90.0 %" in slow.headline or "0.10x" in slow.headline
    assert ", beyond the limit -3 %" in slow.headline
    assert exit_code([slow, BESIDE]) == 3
    # The control: as much slower as the limit allows, and faster.
    for speed in (98.0, 300.0):
        well = judge(runs((speed,)), runs((100.0,)))
        assert well.kind is Kind.INCONCLUSIVE, well.text()
        assert "beyond the limit" not in well.headline and well.evidence["beyond_limit"] is False
        assert exit_code([well, BESIDE]) == 0
