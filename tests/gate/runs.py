"""Whole gate runs on the emulated engine, as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokgate.gate.results import find_run, read_run, read_verdicts
from tokgate.verdict import Verdict

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Finished:
    """One finished gate run."""

    code: int
    output: str
    results: Path

    @property
    def folder(self) -> Path:
        return find_run(self.results, "latest")

    @property
    def facts(self) -> dict[str, Any]:
        return read_run(self.folder)

    @property
    def verdicts(self) -> list[Verdict]:
        return read_verdicts(self.folder)

    def one(self, subject: str, metric: str | None = None) -> Verdict:
        """The verdict on a subject (and metric)."""
        found = [
            v
            for v in self.verdicts
            if v.subject == subject and (metric is None or v.evidence.get("metric") == metric)
        ]
        assert len(found) == 1, f"{len(found)} verdicts on {subject} {metric}:\n{self.output}"
        return found[0]

    def samples(self, profile: str, workload: str) -> list[dict[str, Any]]:
        paths = sorted((self.folder / "samples" / profile / workload).glob("*.json"))
        return [json.loads(path.read_text()) for path in paths]


def tokgate(*arguments: str, timeout_s: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return subprocess.run(
        [sys.executable, "-m", "tokgate", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def gate(folder: Path, *arguments: str, baselines: Path | None = None, **environment: str) -> Finished:
    """Run the gate on the emulated engine with its results in ``folder``."""
    results = folder / "results"
    done = tokgate(
        "gate",
        "perf_tests",
        "-m",
        "emulated",
        "-p",
        "no:cacheprovider",
        f"--results={results}",
        f"--baselines={baselines or folder / 'baselines'}",
        *arguments,
        **environment,
    )
    return Finished(done.returncode, done.stdout + done.stderr, results)
