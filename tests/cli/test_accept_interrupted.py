"""A run that was cut short: what it had measured wholly may be accepted when it is named, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.gate.runs import ROOT
from tokgate.cli import run

# Of three profiles the third was being measured when the time was up.
RUNS = ROOT / "tests/assets/h200-x2/gates/two"
NAME = next(path.name for path in RUNS.glob("*-*-*"))
WHOLE = "tp2-baseline,tp2-eagle3-graphs"


def accept(baselines: Path, *more: str, results: Path = RUNS) -> int:
    return run(["accept", NAME, f"--results={results}", f"--baselines={baselines}", "--reason=a test", *more])


def test_it_is_refused_as_a_whole_and_the_way_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accept(tmp_path) == 2
    said = capsys.readouterr().err
    assert "it is 'interrupted', not complete" in said
    assert f"those alone: --profiles {WHOLE}" in said
    assert not list(tmp_path.rglob("*.yaml"))


def test_profiles_that_were_measured_wholly_are_accepted_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accept(tmp_path, "--profiles", WHOLE) == 0
    assert "note: the run was interrupted" in capsys.readouterr().out
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.yaml"))
    assert found == [
        f"nvidia-h200-x2/{profile}/{workload}.yaml"
        for profile in WHOLE.split(",")
        for workload in ("chat-bs1", "startup")
    ]


def test_a_profile_that_was_cut_off_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accept(tmp_path, "--profiles", "tp2-baseline,tp2-eagle3-eager") == 2
    assert "tp2-eagle3-eager: not measured wholly: chat-bs1" in capsys.readouterr().err
    assert accept(tmp_path, "--profiles", "other") == 2
    assert "holds no profile other" in capsys.readouterr().err


def test_a_profile_lacks_what_its_second_workload_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    shutil.copytree(RUNS / NAME, results / NAME)
    facts = json.loads((results / NAME / "run.json").read_text())
    (results / NAME / "run.json").write_text(json.dumps({**facts, "workloads": ["chat-bs1", "chat-bs8"]}))
    assert accept(tmp_path / "b", "--profiles", "tp2-baseline", results=results) == 2
    assert "tp2-baseline: not measured wholly: chat-bs8" in capsys.readouterr().err
    assert accept(tmp_path / "b", results=results) == 2
    assert "no profile was measured wholly" in capsys.readouterr().err
