"""EAGLE with an EAGLE-3 draft on real SGLang (CPU): refused before the launch, and detected when forced."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.environments.engines import cpu_engine
from tests.gate.runs import ROOT, Finished, tokgate
from tokgate.verdict import Kind

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def misuse(tmp_path: Path, pair) -> tuple[str, ...]:
    """Arguments of a gate whose speculative profile names EAGLE."""
    cpu_engine()
    folder = tmp_path / "perf_tests"
    folder.mkdir()
    for path in (ROOT / "perf_tests").glob("*.yaml"):
        shutil.copy(path, folder)
    profiles = yaml.safe_load((folder / "profiles.yaml").read_text())
    profiles["profiles"]["eagle3-graphs"]["speculation"]["algorithm"] = "EAGLE"
    (folder / "profiles.yaml").write_text(yaml.safe_dump(profiles))
    return (
        "gate", "-m", "cpu", "--profiles=eagle3-graphs", "--workloads=chat-bs1", "--runs=1", "-k=accept_length",
        f"--config-folder={folder}", f"--model={pair.folder}", f"--results={tmp_path / 'results'}",
        f"--baselines={tmp_path / 'baselines'}", "-p", "no:cacheprovider",
    )  # fmt: skip


def finished(tmp_path: Path, *arguments: str) -> Finished:
    done = tokgate(*arguments, timeout_s=800)
    return Finished(done.returncode, done.stdout + done.stderr, tmp_path / "results")


def test_it_is_refused_before_anything_is_started(tmp_path, misuse):
    run = finished(tmp_path, *misuse)
    assert run.code == 1, run.output
    assert {v.kind for v in run.verdicts} == {Kind.MISCONFIGURED}
    assert "accept length would be 1.00; use EAGLE3" in run.output
    assert not list((run.folder / "logs").glob("*"))


def test_forced_it_is_found_by_its_accept_length(tmp_path, misuse):
    run = finished(tmp_path, *misuse, "--force")
    assert run.code == 1, run.output
    verdict = run.one("chat-bs1[eagle3-graphs]", "accept_length")
    assert verdict.kind is Kind.MISCONFIGURED, run.output
    assert any("the draft is not used" in line for line in verdict.body)
    assert "eagle3-graphs was started by force: --speculative-algorithm EAGLE" in run.output
