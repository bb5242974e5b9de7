"""The matrix recorded on an H200 (SGLang 0.5.15.post1, 2026-11-29), judged again with no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.speculation import table
from benchmarks.speculation.judged import Record
from benchmarks.speculation.record import cut
from tests.gate.runs import ROOT, gate
from tokgate.gate.results import find_run
from tokgate.verdict import Kind, Verdict

ONE_B = Record(ROOT / "tests/assets/h200-matrix/1b")


@pytest.fixture(scope="module")
def verdicts() -> dict[tuple[str, str], Verdict]:
    return {(v.subject, str(v.evidence["metric"])): v for v in ONE_B.verdicts()}


@pytest.mark.parametrize(
    ("profile", "launches", "parts"),
    [
        ("baseline", 1, "(decode)"),
        ("eagle3-graphs", 3, "(verify, draft, draft extend)"),
        ("eagle3-attn-decode", 3, "(verify, draft, draft extend)"),
        ("baseline-eager", 0, "off as asked"),
        ("eagle3-eager", 0, "off as asked"),
    ],
)
@pytest.mark.parametrize("workload", ["chat-bs1", "chat-bs8"])
def test_launches_of_every_step(
    profile: str, launches: int, parts: str, workload: str, verdicts: dict[tuple[str, str], Verdict]
) -> None:
    found = verdicts[f"{workload}[{profile}]", "graph launches"]
    assert found.kind is Kind.PASS
    assert found.headline.startswith(f"{launches} cudaGraphLaunch a ")
    assert parts in found.headline
    assert "14 traced steps" in found.headline


def test_graphs_pay_at_an_equal_accept_length(verdicts: dict[tuple[str, str], Verdict]) -> None:
    for workload, requests in (("chat-bs1", "1 request"), ("chat-bs8", "8 requests")):
        assert verdicts[f"{workload}[baseline]", "graphs on/off"].kind is Kind.PASS
        found = verdicts[f"{workload}[eagle3-graphs]", "graphs on/off"]
        assert found.kind is Kind.PASS
        assert f"verify passes equal in {requests}" in found.body[0]


def test_a_hopeless_draft_is_a_net_loss_and_a_good_one_undecided(
    verdicts: dict[tuple[str, str], Verdict],
) -> None:
    assert verdicts["chat-bs1[eagle3-loss]", "decode_tok_s"].kind is Kind.NET_LOSS
    for profile in ("eagle3-graphs", "eagle3-attn-decode"):
        assert verdicts[f"chat-bs1[{profile}]", "decode_tok_s"].kind is Kind.INCONCLUSIVE


def test_an_inert_mode_is_vacuous(verdicts: dict[tuple[str, str], Verdict]) -> None:
    for workload in ("chat-bs1", "chat-bs8"):
        found = verdicts[f"{workload}[eagle3-attn-decode]", "attention mode"]
        assert found.kind is Kind.VACUOUS
        assert "prefill_attention_backend: flashinfer" in found.body[0]


def test_a_histogram_that_ends_early_says_that_the_rest_was_never_accepted(
    verdicts: dict[tuple[str, str], Verdict],
) -> None:
    """SGLang leaves out the zeros at its end: of three steps it told two, and four steps were advised."""
    (histogram,) = {s.requests[0].accept_histogram for s in ONE_B.samples
                    if s.identity.profile == "eagle3-graphs" and s.identity.workload == "chat-bs1"}  # fmt: skip
    assert histogram is not None
    assert len(histogram) == 3
    body = verdicts["chat-bs1[eagle3-graphs]", "decode_tok_s"].body
    assert "acceptance by draft position, of those reached: 100 %, 49 %, 0 %" in body
    (model,) = [line for line in body if line.startswith("modelled")]
    assert "from passes of 4, 32 tokens): 2 draft steps would be best" in model


def test_decode_and_verify_are_held_against_the_memory(verdicts: dict[tuple[str, str], Verdict]) -> None:
    for profile, share in (("baseline", 56), ("eagle3-graphs", 41)):
        body = verdicts[f"chat-bs1[{profile}]", "graph launches"].body
        (line,) = [line for line in body if line.startswith("roofline: ")]
        assert line.endswith(f"at 4209 GB/s): {share} % of the memory's bandwidth")


def test_the_memory_of_graphs_beside_servers_that_start_is_anybodys() -> None:
    """Recorded before it was left out: the same graphs of three servers that resolved alike."""
    told = {s.identity.profile: s.metrics["graphs_gb"] for s in ONE_B.samples if "graphs_gb" in s.metrics}
    alike = [told[name] for name in ("eagle3-graphs", "eagle3-attn-decode", "eagle3-loss")]
    assert max(alike) > 10 * min(alike)


def test_the_page_is_made_from_the_records() -> None:
    page = table.PAGE.read_text(encoding="utf-8")
    assert f"{table.BEGIN}\n{table.text()}\n{table.END}" in page


@pytest.mark.slow
def test_a_run_is_cut_down_and_judged_again_as_it_was(tmp_path: Path) -> None:
    config = ROOT / "benchmarks/speculation/config"
    run = gate(
        tmp_path,
        f"--config-folder={config}",
        "--engine=emulated:steady",
        "--profiles=eagle3-graphs,eagle3-eager",
        "--workloads=chat-bs1",
        "--runs=2",
        "--trace-steps=6",
        "-k=net_gain or graph_launches or on_off",
    )
    cut(find_run(tmp_path / "results", "latest"), tmp_path / "asset")
    again = {(v.subject, v.evidence["metric"]): v for v in Record(tmp_path / "asset").verdicts()}
    told = [
        v
        for v in run.verdicts
        if v.evidence.get("metric") in ("decode_tok_s", "graph launches", "graphs on/off")
    ]
    assert len(told) == 6
    for verdict in told:
        found = again[verdict.subject, verdict.evidence["metric"]]
        assert (found.kind, found.headline) == (verdict.kind, verdict.headline)
    text = "".join(path.read_text() for path in (tmp_path / "asset").glob("*.json"))
    assert str(tmp_path) not in text
