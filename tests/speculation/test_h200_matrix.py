"""The matrix recorded on an H200 (SGLang 0.5.15.post1, 2026-11-29), judged again with no GPU."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.speculation import table
from benchmarks.speculation.judged import Record
from benchmarks.speculation.record import cut
from tests.gate.runs import ROOT, gate
from tokgate.gate.results import find_run
from tokgate.verdict import Kind, Verdict

ONE_B, MIXED = table.records()


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
def test_launches_of_every_step(
    profile: str, launches: int, parts: str, verdicts: dict[tuple[str, str], Verdict]
) -> None:
    found = verdicts[f"chat-bs1[{profile}]", "graph launches"]
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
    assert "from passes of 4, 32 tokens, of other streams too): 2 draft steps would be best" in model


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


def test_five_profiles_take_less_than_six_minutes_of_the_gpu() -> None:
    five = ("baseline", "baseline-eager", "eagle3-graphs", "eagle3-eager", "eagle3-attn-decode")
    began = {
        name: min(
            datetime.fromisoformat(s.identity.started_at)
            for s in ONE_B.samples
            if s.identity.profile == name and s.identity.workload_digest
        )
        for name in (*five, "eagle3-loss")
    }
    # The next profile's first run comes when all of these, their traces too, are done.
    assert (began["eagle3-loss"] - min(began[name] for name in five)).total_seconds() / 60 == pytest.approx(
        4.4, abs=0.05
    )
    starts = [
        s.duration_s for s in ONE_B.samples if s.identity.profile in five and not s.identity.workload_digest
    ]
    assert 97 < min(starts) < max(starts) < 107


@pytest.fixture(scope="module")
def mixed() -> dict[tuple[str, str], Verdict]:
    return {(v.subject, str(v.evidence["metric"])): v for v in MIXED.verdicts()}


def test_of_8_b_every_number_of_draft_steps_is_decided_and_two_are_best(
    mixed: dict[tuple[str, str], Verdict],
) -> None:
    ratios = {}
    for steps, profile in ((3, "eagle3-8b"), (2, "eagle3-8b-steps-2"), (5, "eagle3-8b-steps-5")):
        found = mixed[f"chat-bs1[{profile}]", "decode_tok_s"]
        assert found.kind is Kind.PASS
        ratios[steps] = found.evidence["ratio"]
    assert ratios == pytest.approx({2: 1.81, 3: 1.73, 5: 1.61}, abs=0.01)
    (model,) = [
        line for line in mixed["chat-bs1[eagle3-8b]", "decode_tok_s"].body if line.startswith("modelled")
    ]
    assert "from passes of 3, 4, 6 tokens): 2 draft steps would be best, 1.81x (379 tok/s)" in model


def test_the_model_foretells_the_cycle_of_other_draft_steps() -> None:
    steps = {2: "eagle3-8b-steps-2", 3: "eagle3-8b", 5: "eagle3-8b-steps-5"}
    profiles = {profile.name: profile for profile in MIXED.profiles}
    for workload in MIXED.workloads:
        for one in steps.values():
            model = MIXED.model(profiles[one], workload)
            assert model is not None
            for number, other in steps.items():
                measured = MIXED.measured(other, workload.name)
                assert measured is not None
                cycle_ms = fmean(measured.series("cycle_ms"))
                assert model.curve[number - 1].cycle_ms == pytest.approx(cycle_ms, rel=0.015)


def test_what_nobody_measured_is_an_if(mixed: dict[tuple[str, str], Verdict]) -> None:
    """Of two steps it was advised to make four; measured, three are slower than two."""
    body = mixed["chat-bs1[eagle3-8b-steps-2]", "decode_tok_s"].body
    (model,) = [line for line in body if line.startswith("modelled")]
    assert (
        "2 draft steps, as now, are best; were positions beyond 2 accepted as 2 is, 4 would give 1.92x"
        in model
    )


def test_a_mode_that_acts_is_compared(mixed: dict[tuple[str, str], Verdict]) -> None:
    assert MIXED.facts["servers"]["hybrid-mode-decode"]["hybrid_line"] is True
    one = mixed["chat-bs1[hybrid-mode-decode]", "attention mode"]
    assert one.kind is Kind.INCONCLUSIVE
    assert "no difference detectable (smallest detectable 21 %)" in one.headline
    eight = mixed["chat-bs8[hybrid-mode-decode]", "attention mode"]
    assert eight.kind is Kind.PASS
    assert "mode decode is faster" in eight.headline
    assert "chat-bs1[hybrid-mode-decode]" in MIXED.slowed()


def test_of_8_b_the_log_the_client_and_the_whole_run_agree(mixed: dict[tuple[str, str], Verdict]) -> None:
    body = mixed["chat-bs1[eagle3-8b]", "decode_tok_s"].body
    (line,) = [line for line in body if line.startswith("of a whole run")]
    assert line == (
        "of a whole run 7.05 ms a cycle (accept length x streams / rate): 6.86 ms in decode as the client sees it, "
        "0.20 ms (3 %) in prefill, first tokens and idle streams; the engine's log says 6.97 ms: nothing lies outside "
        "its own steps"
    )


def test_8_b_against_the_memory(mixed: dict[tuple[str, str], Verdict]) -> None:
    for profile, share in (("baseline-8b", 79), ("eagle3-8b", 68)):
        body = mixed[f"chat-bs1[{profile}]", "graph launches"].body
        (line,) = [line for line in body if line.startswith("roofline: ")]
        assert line.endswith(f"at 4233 GB/s): {share} % of the memory's bandwidth")


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
