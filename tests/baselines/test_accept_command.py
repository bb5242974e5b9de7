"""``tokgate accept`` on the run recorded on an H200, in which three runs are void: none of those cases is taken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.gate.runs import ROOT, tokgate
from tokgate.host.fitness import dirty

RUN = next((ROOT / "tests/assets/h200").glob("*-*-*"))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    shutil.copytree(RUN, tmp_path / "results" / RUN.name)
    return tmp_path / "results"


def accept(results: Path, *more: str) -> tuple[int, str, list[str]]:
    stored = results.parent / "baselines"
    done = tokgate("accept", RUN.name, f"--results={results}", f"--baselines={stored}", "--reason=x", *more)
    written = sorted(str(path.relative_to(stored / "nvidia-h200")) for path in stored.rglob("*.yaml"))
    return done.returncode, done.stdout + done.stderr, written


def warn(results: Path, *warnings: str) -> None:
    path = results / RUN.name / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "host_warnings": list(warnings)}))


def test_a_case_with_a_void_run_is_refused_and_its_cause_named(results: Path) -> None:
    code, said, written = accept(results)
    assert (code, written) == (2, [])
    assert "3 of its 41 runs are void" in said
    assert "chat-bs1[baseline]: 2 of 8 runs void: client_lag 2x, merged_reads 1x" in said
    assert "chat-bs4[baseline]: 1 of 7 runs void: client_lag 1x" in said
    assert "chat-bs8[baseline]" in said.partition("without one:")[2].partition("\n")[0]


def test_what_is_without_one_can_be_chosen(results: Path) -> None:
    code, said, written = accept(results, "--profiles=baseline", "--workloads=chat-bs8")
    assert (code, written) == (0, ["baseline/chat-bs8.yaml"]), said
    code, said, written = accept(results, "--profiles=eagle3-graphs")
    assert code == 0 and len(written) == 5, said


@pytest.mark.parametrize("option", ["--workloads=chat-bs9", "--workloads=,"])
def test_a_wrong_choice_is_said(results: Path, option: str) -> None:
    code, said, written = accept(results, option)
    assert (code, written) == (2, [])
    assert "holds no workload chat-bs9" in said or "--workloads was given without a name" in said


def test_a_host_that_others_used_is_refused(results: Path) -> None:
    warn(results, "steal: 4.0 % of CPU time over 0.5 s")
    code, said, written = accept(results, "--profiles=eagle3-graphs")
    assert (code, written) == (2, [])
    assert "others used its host when it began" in said and "steal: 4.0 %" in said


def test_how_a_host_is_set_is_a_note(results: Path) -> None:
    warn(results, "governor: powersave", "ulimit -n: 20000 open files")
    code, said, written = accept(results, "--profiles=eagle3-graphs")
    assert code == 0 and len(written) == 4, said
    assert "the host was warned of: governor: powersave" in said
    assert dirty(["load: 40 on 16 CPUs", "gpu0.clocks: SM"]) == ["load: 40 on 16 CPUs"]


def test_a_case_that_a_slow_cpu_met_throughout_is_refused(results: Path) -> None:
    """Its runs count, since they were nearly all: for a level they do not."""
    path = next((results / RUN.name / "samples/eagle3-graphs/chat-bs8").glob("*.sample.json"))
    sample = json.loads(path.read_text())
    reason = {"cause": "slow_cpu", "measured": 1.5, "bound": 1.15, "unit": "x", "message": "slow"}
    path.write_text(json.dumps({**sample, "advisory": [reason]}))
    code, said, written = accept(results, "--profiles=eagle3-graphs")
    assert (code, written) == (2, []) and "chat-bs8[eagle3-graphs]: 1 of" in said and "slow_cpu 1x" in said
