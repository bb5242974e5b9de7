"""Graph use from captures and counters: real logs and counters, and everything that may be absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokgate.analysis.replay import Coverage, coverage, graph_use, suspects
from tokgate.gate.facts import read_facts
from tokgate.gate.passes import between, of_run
from tokgate.sglang.graphs import ExpectedGraphs, expected_graphs
from tokgate.sglang.metrics import Counters, GraphPasses

LOGS = Path(__file__).parents[1] / "sglang" / "samples"
FULL = Coverage(("target-decode",), ())
ONE = {"target-decode": ("",)}


def passes(graph: float, eager: float, prefill: float = 0) -> GraphPasses:
    return GraphPasses(graph, eager, prefill, 3)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("0.5.13.post1/baseline-graphs.log", ["target-decode"]),
        ("0.5.13.post1/eagle3-graphs.log", ["target-verify", "draft-decode", "draft-extend"]),
        ("0.5.15.post1/eagle3-accept-2.5.log", ["target-verify", "draft-decode", "draft-extend"]),
        ("0.5.15.post1/eagle3-eager.log", []),
    ],
)
def test_real_logs_of_both_eras_tell_their_captures(name: str, kinds: list[str]) -> None:
    facts = read_facts(LOGS / name, {})
    assert facts.captures is not None
    assert list(facts.captures) == kinds
    assert facts.hybrid_line is False
    expected = expected_graphs(
        name.partition("/")[0],
        decode_graphs=bool(kinds),
        speculative="eagle3" in name,
        steps=3,
        draft_backend="triton",
    )
    found = coverage(facts.captures, expected, 1)
    assert (list(found.lines), found.absent) == (kinds, ())


def test_a_log_without_a_start_tells_nothing(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert read_facts(log, {}).captures is None
    log.write_text("something else wrote here\n")
    facts = read_facts(log, {"architectures": ["DeepseekV3ForCausalLM"]})
    assert (facts.captures, facts.hybrid_line) == (None, None)
    assert facts.architectures == ("DeepseekV3ForCausalLM",)


def test_coverage_by_rank_in_both_eras() -> None:
    ranks = tuple(f"TP{n}" for n in range(4))
    new = ExpectedGraphs(("target-verify", "draft-decode"), 2, draft_on_all_ranks=False)
    captures = {"target-verify": ranks, "draft-decode": ("TP0",)}
    assert coverage(captures, new, 4) == Coverage(("target-verify on 4 of 4 ranks", "draft-decode"), ())
    old = ExpectedGraphs(("target-verify", "draft-decode"), 2, draft_on_all_ranks=True)
    assert coverage(captures, old, 4).absent == ("draft-decode: no capture on TP1, TP2, TP3 in the log",)
    assert coverage({"target-verify": ranks[:3]}, new, 4).absent == (
        "target-verify: no capture on TP3 in the log",
        "draft-decode: no capture in the log",
    )


def test_wanted_graphs() -> None:
    def state(counted: list[GraphPasses | None], captures: object = ONE, found: Coverage = FULL) -> str:
        return graph_use(counted, captures, found, wanted=True, prefill_wanted=False).state  # type: ignore[arg-type]

    assert state([passes(100, 0), passes(100, 0)]) == "replayed"
    assert state([passes(100, 1)]) == "replayed"
    assert state([passes(100, 2)]) == "not replayed"
    assert state([passes(0, 100)]) == "not replayed"
    # Absent: the counter, in one run of two; any pass; the log; one kind's line.
    assert state([]) == "unknown"
    assert state([passes(100, 0), None]) == "unknown"
    assert state([passes(0, 0)]) == "unknown"
    assert state([passes(100, 0)], captures=None) == "unknown"
    assert (
        state([passes(100, 0)], found=Coverage(("target-verify",), ("draft-decode: no capture",)))
        == "unknown"
    )
    # The counter alone proves that graphs were not used.
    assert state([passes(0, 100)], captures={}) == "not replayed"
    assert state([passes(0, 100)], captures=None) == "not replayed"


def test_graphs_that_shall_be_off() -> None:
    def state(counted: GraphPasses | None, captures: object, *, prefill: bool = False) -> str:
        found = Coverage((), ())
        return graph_use([counted], captures, found, wanted=False, prefill_wanted=prefill).state  # type: ignore[arg-type]

    assert state(passes(0, 50), {}) == "off"
    assert state(passes(1, 49), {}) == "not off"
    assert state(passes(0, 50), ONE) == "not off"
    assert state(passes(0, 50), {"target-prefill": ("",)}) == "not off"
    assert state(passes(0, 50, 2), {}) == "not off"
    assert state(passes(0, 50, 2), {"target-prefill": ("",)}, prefill=True) == "off"
    assert state(None, {}) == "unknown"
    assert state(passes(0, 50), None) == "unknown"


def test_batch_sizes_and_padding_are_blamed_or_cleared() -> None:
    sizes = {"cuda_graph_decode_bs": [1, 2, 4, 8], "disable_cuda_graph_padding": False}
    assert suspects(sizes, 8, ONE).blamed == ()
    assert len(suspects(sizes, 8, ONE).cleared) == 2
    assert "up to 9 requests ran, captured up to 8" in suspects(sizes, 9, ONE).blamed[0]
    unpadded = sizes | {"disable_cuda_graph_padding": True}
    assert suspects(unpadded, 4, ONE).blamed == ("padding is off and sizes 3 were not captured",)
    assert suspects(unpadded, 2, ONE).blamed == ()
    assert suspects({}, 4, ONE).unknown
    assert suspects({"cuda_graph_decode_bs": [1, 4]}, 4, ONE).unknown
    assert suspects(sizes, 1, {}).blamed == ("the log shows no capture at all",)


def test_a_runs_passes_survive_storing_and_absence_stays_absence() -> None:
    before = Counters(graph_passes={"decode_cuda_graph": 10.0})
    after = Counters(graph_passes={"decode_cuda_graph": 28.0, "decode_none": 2.0})
    stored = between(before, after)
    assert of_run(stored) == GraphPasses(18, 2, 0, 0)
    # A scrape that failed is no scrape of a server without passes.
    assert between(None, after) == between(before, None) == between(before, Counters()) == {}
    assert of_run({}) is None
    assert of_run({"decode_graph_passes": 3.0}) is None
