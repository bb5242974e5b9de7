"""Faults that output shows, planted in the speculative servers alone: each gets its verdict, ties are no faults.

Servers of one gate run have a fault each.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.gate.runs import ROOT, Finished, gate
from tokgate.verdict import Kind, Verdict

FAULTS = {
    "eagle3-graphs": "tie-flip:0.01",
    "eagle3-eager": "accept-one",
    "eagle3-attn-decode": "tie-flip:0.5",
    "eagle3-attn-prefill": "repeat-token:3",
    "eagle3-radix": "stale-prefix",
}
# Behind the eight tokens of the first generation: an answer that is shorter is told at the start (NOT_SERVING).
MORE = {"eagle3-graphs": "truncate:9", "eagle3-eager": "swap-requests", "eagle3-radix": None}


def patient(folder: Path) -> Path:
    """The suite's configuration, with time for six servers that start side by side on a loaded machine."""
    shutil.copytree(
        ROOT / "perf_tests", folder / "perf_tests", ignore=shutil.ignore_patterns("*.py", "__pycache__")
    )
    path = folder / "perf_tests" / "gate.yaml"
    body = yaml.safe_load(path.read_text())
    floors = body["deadlines"]["floors"]["emulated"]
    floors |= dict.fromkeys(floors, 60)
    path.write_text(yaml.safe_dump(body))
    return path.parent


def run_with(folder: Path, faults: dict[str, str | None]) -> Finished:
    planted = [f"--engine-fault={name}={fault}" for name, fault in faults.items() if fault]
    return gate(
        folder,
        "--engine=emulated:steady",
        "--workloads=chat-bs1",
        "--runs=1",
        f"--profiles={','.join(faults)}",
        f"--config-folder={patient(folder)}",
        *planted,
        "-k=parity or accept_length",
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    yield run_with(tmp_path_factory.mktemp("faults"), FAULTS)


def parity(run: Finished, profile: str) -> list[Verdict]:
    found = [
        v for v in run.verdicts if v.subject.startswith("parity-") and v.subject.endswith(f"[{profile}]")
    ]
    assert len(found) == 6, run.output
    return found


def told(verdicts: list[Verdict], words: str) -> bool:
    return any(words in line for v in verdicts if v.kind is Kind.DIVERGED for line in (v.headline, *v.body))


def test_ties_are_counted_and_forgiven(run: Finished) -> None:
    found = parity(run, "eagle3-graphs")
    assert {v.kind for v in found} == {Kind.PASS}, run.output
    assert sum(v.evidence["ties"] for v in found) > 0, run.output


def test_a_wider_gap_than_the_floor_explains_is_no_tie(run: Finished) -> None:
    assert told(parity(run, "eagle3-attn-decode"), "diverged at output token")


def test_a_repeated_token_diverges(run: Finished) -> None:
    assert told(parity(run, "eagle3-attn-prefill"), "diverged at output token 3")


def test_a_stale_prefix_shows_where_the_cache_serves_and_only_there(run: Finished) -> None:
    by_case = {v.subject: v for v in parity(run, "eagle3-radix")}
    shared = by_case["parity-shared-in-turn[eagle3-radix]"]
    assert shared.kind is Kind.DIVERGED
    assert shared.evidence["cached_tokens"] > 0
    assert by_case["parity-batch-1[eagle3-radix]"].kind is Kind.PASS


def test_a_draft_that_is_never_accepted_is_misconfigured_not_slower(run: Finished) -> None:
    assert {v.kind for v in parity(run, "eagle3-eager")} == {Kind.PASS}
    verdict = run.one("chat-bs1[eagle3-eager]", "accept_length")
    assert verdict.kind is Kind.MISCONFIGURED
    assert verdict.headline.endswith("1.00 tokens: the draft is not used"), verdict.headline
    assert run.code == 1


@pytest.mark.slow
def test_more_faults_and_a_prefix_cache_that_is_right(tmp_path: Path) -> None:
    run = run_with(tmp_path, MORE)
    assert told(parity(run, "eagle3-graphs"), "truncated at output token 9")
    assert told(parity(run, "eagle3-eager"), "it is the output of request")
    radix = parity(run, "eagle3-radix")
    assert {v.kind for v in radix} == {Kind.PASS}, run.output
    assert any(
        "prompt tokens from the prefix cache: 0 of the reference" in line for v in radix for line in v.body
    )
