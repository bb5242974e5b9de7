"""A version that cannot speculate on a CPU is told of before anything is started, whichever side it is on."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bump.simulation import CONFIG
from tokgate.cli import run

WHY = "SGLang 0.5.15.post1 cannot speculate with a draft model on a CPU"


def engine(folder: Path, version: str, kind: str = "cpu") -> str:
    path = folder / f"{version}.yaml"
    path.write_text(f"kind: {kind}\nversion: {version}\npython: /nowhere/python\n", encoding="utf-8")
    return str(path)


def planned(folder: Path, versions: tuple[str, str], *arguments: str, kind: str = "cpu") -> int:
    old, new = (engine(folder, version, kind) for version in versions)
    asked = [f"--from-engine={old}", f"--to-engine={new}", f"--config-folder={CONFIG}"]
    asked += [
        f"--results={folder / 'results'}",
        f"--baselines={folder / 'baselines'}",
        "--workloads=chat-bs1",
    ]
    return run(["bump", "--dry-run", *asked, *arguments])


@pytest.mark.parametrize("versions", [("0.5.15.post1", "0.5.23"), ("0.5.23", "0.5.15.post1")])
def test_profiles_with_a_draft_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], versions: tuple[str, str]
) -> None:
    assert planned(tmp_path, versions) == 0
    told = capsys.readouterr().out
    assert f"not applicable: eagle3-graphs: {WHY}" in told
    # What is not applicable on any CPU is still told of in its own words.
    assert "has no CUDA graphs" in told
    assert "profiles baseline; workloads chat-bs1" in told


@pytest.mark.parametrize("versions", [("0.5.15.post1", "0.5.23"), ("0.5.23", "0.5.15.post1")])
def test_one_that_is_asked_for_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], versions: tuple[str, str]
) -> None:
    assert planned(tmp_path, versions, "--profiles=eagle3-graphs") == 2
    assert f"profile 'eagle3-graphs' cannot exist here: {WHY}" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_versions_that_can_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """The control: newer ones on a CPU, and these on a GPU."""
    versions = ("0.5.18", "0.5.23") if kind == "cpu" else ("0.5.15.post1", "0.5.23")
    more = () if kind == "cpu" else ("--host-class=nvidia-h200",)
    assert planned(tmp_path, versions, "--profiles=baseline,eagle3-graphs", *more, kind=kind) == 0
    told = capsys.readouterr().out
    assert "profiles baseline, eagle3-graphs;" in told and "cannot speculate" not in told
