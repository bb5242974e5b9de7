"""The trials that are made on a GPU, on the emulated engine: they end by themselves, in time, and leave nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.supervision.trials import OF, left_of
from tokgate.host import marker, proc

ROOT = Path(__file__).parents[2]


def trials(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.supervision.trials",
            "--engine=emulated",
            f"--out={out}",
            *options,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def left(out: Path) -> list[proc.Process]:
    return [p for p in proc.table().values() if p.alive and str(out) in (proc.command_line(p.pid) or "")]


def test_what_is_left_is_told_apart_from_servers_of_other_gates(tmp_path: Path) -> None:
    ours = f"trials-{os.getpid()}"
    idle = [
        sys.executable,
        "-S",
        "-c",
        "import time; print(flush=True); time.sleep(600)",
        f"sglang {tmp_path}",
    ]
    marked = {**os.environ, **marker.variables("mark-of-a-launch")}
    others = [
        # A server of these trials, one of other trials and one of a gate, a reaper of these trials.
        {**marked, OF: ours},
        {**marked, OF: f"{ours}0"},
        marked,
        {**os.environ, OF: ours},
    ]
    started = [subprocess.Popen(idle, env=env, stdout=subprocess.PIPE) for env in others]
    try:
        for process in started:
            assert process.stdout is not None and process.stdout.readline()
        assert [process.pid for process in left_of(ours)] == [started[0].pid]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert left_of(ours) == []


@pytest.mark.slow
def test_trials_end_as_they_must_and_what_may_be_published_names_no_path(tmp_path: Path) -> None:
    done = trials(tmp_path, "--only=suspend-in-load,abort-in-capture,two-gates", "--floor=2", "--at-once=1")
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads((tmp_path / "suspend-in-load" / "row.json").read_text())
    assert row["got"] == "HANG" and row["stacks"] == row["processes"] == 3 and row["evidence_s"] < 10
    published = [path for path in (tmp_path / "assets").rglob("*.txt")]
    assert {path.parent.name for path in published} == {"suspend-in-load", "abort-in-capture", "two-gates"}
    for path in published:
        assert str(tmp_path) not in path.read_text() and str(ROOT) not in path.read_text()
    assert (tmp_path / "assets.tar.gz").is_file() and not left(tmp_path)


@pytest.mark.slow
def test_a_budget_that_is_too_short_is_kept_and_said(tmp_path: Path) -> None:
    done = trials(tmp_path, "--only=suspend-in-load,control", "--floor=600", "--at-once=1", "--budget-s=35")
    assert done.returncode == 1
    assert "left out: suspend-in-load: not done when the budget ended" in done.stdout, done.stdout
    assert "left out: control: no time was left to begin it" in done.stdout
    assert not left(tmp_path)
