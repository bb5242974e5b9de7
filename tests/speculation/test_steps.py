"""Draft steps as a dimension of the matrix: profiles that differ in nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.gate.runs import ROOT, gate
from tokgate.config.profiles import load_profiles
from tokgate.sglang.flags import server_arguments

PROFILES = load_profiles(ROOT / "perf_tests/profiles.yaml")


@pytest.mark.parametrize("steps", [2, 5])
def test_they_differ_in_steps_alone(steps: int) -> None:
    usual, other = PROFILES.get("eagle3-graphs"), PROFILES.get(f"eagle3-steps-{steps}")
    assert usual.speculation is not None
    assert other.speculation is not None
    assert (other.speculation.steps, other.speculation.draft_tokens) == (steps, steps + 1)
    assert replace(other, speculation=usual.speculation).digest == usual.digest
    assert other.on_demand
    argv = server_arguments(
        other, version="0.5.15.post1", kind="gpu", target="t", draft="d", host="h", port=1
    ).argv
    assert argv[argv.index("--speculative-num-steps") + 1] == str(steps)


def test_a_tree_differs_in_its_shape_alone() -> None:
    usual, tree = PROFILES.get("eagle3-graphs"), PROFILES.get("eagle3-topk-4")
    assert tree.speculation is not None
    assert (tree.speculation.topk, tree.speculation.draft_tokens) == (4, 8)
    assert replace(tree, speculation=usual.speculation).digest == usual.digest
    argv = server_arguments(
        tree, version="0.5.15.post1", kind="gpu", target="t", draft="d", host="h", port=1
    ).argv
    assert argv[argv.index("--speculative-eagle-topk") + 1] == "4"
    assert argv[argv.index("--speculative-num-draft-tokens") + 1] == "8"


@pytest.mark.slow
def test_a_tree_is_modelled_at_its_own_shape(tmp_path: Path) -> None:
    run = gate(
        tmp_path,
        "--engine=emulated:steady",
        "--profiles=eagle3-topk-4",
        "--workloads=chat-bs1",
        "--runs=2",
        "--trace-steps=6",
        "-k=net_gain",
    )
    body = run.one("chat-bs1[eagle3-topk-4]", "decode_tok_s").body
    assert any(line.startswith("modelled from these costs (tree of topk 4 and 8 tokens") for line in body), (
        body
    )


@pytest.mark.slow
def test_one_run_compares_them_in_one_table(tmp_path: Path) -> None:
    run = gate(
        tmp_path,
        "--engine=emulated:steady",
        "--profiles=eagle3-steps-2,eagle3-graphs,eagle3-steps-5",
        "--workloads=chat-bs1",
        "--runs=2",
        "--trace-steps=6",
        "-k=net_gain or graph_launches",
    )
    for name in ("eagle3-steps-2", "eagle3-graphs", "eagle3-steps-5"):
        verdict = run.one(f"chat-bs1[{name}]", "decode_tok_s")
        assert any(line.startswith("modelled from these costs") for line in verdict.body), run.output
        assert f"\nchat-bs1[{name}] " in run.output
