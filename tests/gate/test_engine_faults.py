"""Faults planted in the engine: the right verdict each, one start each, other profiles go on."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.gate.runs import ROOT, Finished, gate, tokgate
from tokgate.analysis.parity_case import load_case
from tokgate.verdict import Kind

GAIN = "test_net_gain[eagle3-graphs-chat-bs1]"
QUICK = ("--engine=emulated:steady", "--workloads=chat-bs1", "--runs=2")


def logs(run: Finished, profile: str) -> list[str]:
    return sorted(path.name for path in (run.folder / "logs").glob(f"{profile}-*.log"))


def test_without_a_fault_there_is_none(tmp_path: Path) -> None:
    run = gate(
        tmp_path,
        *QUICK,
        # Of two runs that load makes differ by a quarter the interval is too wide for any gain (t of one degree: 12.7).
        "--runs=5",
        "--profiles=eagle3-graphs",
        "-k=(parity or startup or net_gain) and not startup_time",
    )
    assert {v.kind for v in run.verdicts} == {Kind.PASS}, run.output
    assert run.code == 0
    # The control of interrupted runs: this one was none.
    assert (run.folder / "report.md").read_text().startswith("# tokgate\n")
    assert run.facts["status"] == "complete" and "interrupted" not in run.facts
    assert "interrupted" not in (run.folder / "junit.xml").read_text()


def test_a_run_cut_short_is_no_baseline(tmp_path: Path) -> None:
    run = gate(tmp_path, *QUICK, "--profiles=baseline", "-x", "-k=throughput or latency")
    assert run.facts["status"] == "interrupted", run.output
    assert run.facts["interrupted"]["signal"] is None
    first = (run.folder / "report.md").read_text().partition("\n")[0]
    assert first.startswith(
        "# tokgate: cut short: stopping after 1 failures: 1 of 3 tests judged; again: tokgate"
    )
    refused = tokgate(
        "accept", "latest", f"--results={run.results}", f"--baselines={tmp_path / 'b'}", "--reason=x"
    )
    assert refused.returncode == 2
    assert "it is 'interrupted', not complete" in refused.stderr


def test_a_server_ten_times_slower_is_not_green(tmp_path: Path) -> None:
    arguments = (*QUICK, "--profiles=baseline", "-k=throughput or startup")
    gate(tmp_path, *arguments)
    tokgate(
        "accept",
        "latest",
        f"--results={tmp_path / 'results'}",
        f"--baselines={tmp_path / 'baselines'}",
        "--reason=x",
    )
    slow = gate(tmp_path, *arguments, "--engine-fault=slow:10")
    assert slow.one("chat-bs1[baseline]", "output_tok_s").kind is Kind.INCONCLUSIVE
    assert slow.code == 3, slow.output
    # Nor is it a baseline: the control above was accepted with the same words.
    before = sorted((tmp_path / "baselines").rglob("*.yaml"))
    refused = tokgate(
        "accept",
        "latest",
        f"--results={tmp_path / 'results'}",
        f"--baselines={tmp_path / 'baselines'}",
        "--reason=x",
    )
    assert refused.returncode == 2
    assert "faults were planted in its engine\n" in refused.stderr and "slow:10" in refused.stderr
    assert before and sorted((tmp_path / "baselines").rglob("*.yaml")) == before


def test_speculation_ten_times_slower_than_none_is_not_green(tmp_path: Path) -> None:
    """One run a side decides nothing, and something else is green."""
    arguments = ("--profiles=eagle3-graphs", "--workloads=chat-bs1", "--runs=1", "-k=net_gain or replay")
    slow = gate(tmp_path, *arguments, "--engine-fault=eagle3-graphs=slow:10")
    gain = slow.one("chat-bs1[eagle3-graphs]", "decode_tok_s")
    assert gain.kind is Kind.INCONCLUSIVE and gain.evidence["beyond_limit"] is True, slow.output
    assert gain.headline.endswith(", beyond the limit -3 %")
    assert {v.kind for v in slow.verdicts} == {Kind.INCONCLUSIVE, Kind.PASS}
    assert slow.code == 3, slow.output


def test_a_wrong_token_diverges_and_leaves_a_case_to_replay(tmp_path: Path) -> None:
    run = gate(
        tmp_path,
        *QUICK,
        "--profiles=eagle3-graphs",
        "--engine-fault=eagle3-graphs=wrong-token:5",
        "-k=parity and many",
    )
    verdict = run.one("parity-many[eagle3-graphs]")
    assert verdict.kind is Kind.DIVERGED, run.output
    assert "at output token 5" in verdict.headline
    assert load_case(Path(verdict.files[0])).requests
    assert verdict.next_command is not None and "parity replay" in verdict.next_command
    assert run.code == 1


def test_a_server_that_dies_at_start_is_started_once_and_spares_the_others(tmp_path: Path) -> None:
    run = gate(
        tmp_path,
        *QUICK,
        "--profiles=eagle3-graphs",
        "--engine-fault=crash-first-replay",
        "-k=(startup and not startup_time) or throughput",
    )
    verdicts = run.verdicts
    assert {v.kind for v in verdicts} == {Kind.EXITED}, run.output
    # One verdict a profile, however many tests it stops; one start each.
    assert sorted(v.subject for v in verdicts) == ["startup[baseline]", "startup[eagle3-graphs]"]
    assert logs(run, "baseline") == ["baseline-0.log"]
    assert logs(run, "eagle3-graphs") == ["eagle3-graphs-0.log"]
    assert run.code == 1


def test_a_capture_that_never_ends_is_a_hang_of_its_profile_alone(tmp_path: Path) -> None:
    run = gate(
        tmp_path,
        *QUICK,
        "--profiles=eagle3-graphs",
        "--engine-fault=capture-hang:draft-extend",
        "-k=(startup and not startup_time) or net_gain",
    )
    hang = run.one("startup[eagle3-graphs]")
    assert hang.kind is Kind.HANG, run.output
    assert hang.headline.startswith("draft-extend graph capture: no progress for")
    assert run.one("startup[baseline]").kind is Kind.PASS
    assert any(path.endswith(".log") for path in hang.files)
    assert run.code == 1
    # Two tests need that server: the whole message stands at the first, one line at the other, in JUnit too.
    assert run.output.count("\n  last log line") == 1
    first = f"perf_tests/test_speculation.py::{GAIN}"
    assert f"\nHANG startup[eagle3-graphs]: told in full at {first}\n" in run.output
    assert run.output.count(f"\n{hang.line}\n") == 1, run.output
    cases = {
        case.attrib["name"]: case for case in ElementTree.parse(run.folder / "junit.xml").iter("testcase")
    }
    whole, short = (cases[name].find("error") for name in (GAIN, "test_startup[eagle3-graphs]"))
    assert whole is not None and len((whole.text or "").splitlines()) > 3
    assert short is not None and len((short.text or "").splitlines()) == 1 and first in str(short.text)


def test_a_case_with_too_many_void_runs_is_unfit_in_so_many_words(tmp_path: Path) -> None:
    """pytest-benchmark's fixture is torn down unused: that is no second fault, and no traceback."""
    config = tmp_path / "config"
    config.mkdir()
    for name in ("profiles", "workloads", "gate"):
        text = (ROOT / "perf_tests" / f"{name}.yaml").read_text()
        (config / f"{name}.yaml").write_text(text.partition("\nvoid:\n")[0] + "\n")
    with (config / "gate.yaml").open("a") as file:
        file.write("void: {max_void_runs: 1, scheduler_run_delay_share: 0}\n")
    # -W error: as strict as this project is, whatever its own filters say.
    asked = ("--profiles=baseline", f"--config-folder={config}", "-k=throughput", "-W=error")
    run = gate(tmp_path, *QUICK, *asked)
    assert {v.kind for v in run.verdicts} == {Kind.UNFIT}, run.output
    assert run.code == 3
    assert "PytestBenchmarkWarning" not in run.output and "Traceback" not in run.output, run.output
    (suite,) = ElementTree.parse(run.folder / "junit.xml").getroot()
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["errors"]) == ("3", "3", "0")


def test_a_death_while_it_is_measured_is_not_waited_out(tmp_path: Path) -> None:
    """The detokenizer dies and its server says nothing: long before the client's deadline it is told."""
    config = tmp_path / "config"
    config.mkdir()
    for name in ("profiles", "workloads", "gate"):
        text = (ROOT / "perf_tests" / f"{name}.yaml").read_text()
        text = text.replace(
            "  usual_time_factor:", "  request_gap_s: 500\n  request_total_s: 500\n  usual_time_factor:"
        )
        (config / f"{name}.yaml").write_text(text)
    run = gate(
        tmp_path,
        *QUICK,
        "--profiles=baseline",
        f"--config-folder={config}",
        "--engine-fault=detokenizer-exit:100",
        "-k=throughput",
    )
    assert {v.kind for v in run.verdicts} == {Kind.EXITED}, run.output
    assert re.search(r"detokenizer \(pid \d+\)", run.verdicts[0].headline), run.output
    assert run.code == 1


@pytest.mark.parametrize("fault", ["http-500:1", "early-close:3"])
def test_requests_that_fail_are_counted_and_never_a_fast_run(tmp_path: Path, fault: str) -> None:
    run = gate(tmp_path, *QUICK, "--profiles=baseline", f"--engine-fault={fault}", "-k=throughput or latency")
    assert not [v for v in run.verdicts if v.outcome == "green"], run.output
    assert run.code in {1, 3}
