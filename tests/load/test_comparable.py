"""Two servers that resolved differently are not compared: EAGLE-3's silent cap of running requests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.gate.runs import ROOT, Finished, tokgate
from tokgate.verdict import Kind

LINE = "    max_running_requests: 64\n"


def gate(folder: Path, limited: bool) -> Finished:
    """The gate on a suite of which all profiles ask for 64 running requests, or none asks for any."""
    suite = folder / "suite"
    for name in ("perf_tests", "fixtures"):
        shutil.copytree(ROOT / name, suite / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, suite / name)
    profiles = suite / "perf_tests" / "profiles.yaml"
    text = profiles.read_text()
    assert text.count(LINE) == 1
    profiles.write_text(text if limited else text.replace(LINE, ""))
    results = folder / "results"
    done = tokgate(
        "gate",
        f"--folder={suite}",
        "perf_tests/test_speculation.py",
        "-m",
        "emulated",
        "-p",
        "no:cacheprovider",
        "--engine=emulated:steady",
        "--profiles=eagle3-graphs",
        "--workloads=chat-bs1",
        "--runs=2",
        f"--results={results}",
        f"--baselines={folder / 'baselines'}",
        PYTHONPATH=str(ROOT),
    )
    return Finished(done.returncode, done.stdout + done.stderr, results)


def test_a_silent_cap_makes_profiles_incomparable(tmp_path: Path) -> None:
    run = gate(tmp_path, limited=False)
    assert run.results.exists(), run.output
    (verdict,) = [v for v in run.verdicts if v.kind is Kind.INCOMPARABLE]
    assert verdict.subject == "chat-bs1[eagle3-graphs]"
    assert verdict.headline == (
        "'eagle3-graphs' and 'baseline' resolved differently: max_running_requests 48 against None"
    )
    assert "set it on both profiles in profiles.yaml" in verdict.body
    assert run.code == 1


@pytest.mark.slow
def test_the_same_limit_on_both_is_compared(tmp_path: Path) -> None:
    run = gate(tmp_path, limited=True)
    assert not [v for v in run.verdicts if v.kind is Kind.INCOMPARABLE]
    resolved = [
        run.samples(name, "chat-bs1")[0]["identity"]["resolved"] for name in ("baseline", "eagle3-graphs")
    ]
    assert [found["max_running_requests"] for found in resolved] == [64, 64]
