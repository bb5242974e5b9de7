"""A run that ended without a word is not taken for one that goes on, and a run that goes on is not taken for ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gate.runs import ROOT
from tokgate.cli import run as command
from tokgate.gate.ending import UNTOLD, tell_end
from tokgate.gate.results import Results, read_facts, read_run
from tokgate.host.stored_file import hold

FACTS = {
    "engine_kind": "emulated",
    "host_class": "emulated-steady",
    "profiles": ["baseline"],
    "workloads": ["chat-bs1"],
    "gated_metrics": ["output_tok_s"],
    "host_warnings": [],
    "engine_faults": [],
}
RUN = """
import json, sys
from pathlib import Path
from tokgate.gate.results import Results

print(Results(Path(sys.argv[1]), json.loads(sys.argv[2])).folder, flush=True)
sys.stdin.read()
"""


@contextmanager
def running(root: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A run of another process, and that process."""
    arguments = [sys.executable, "-c", RUN, str(root), json.dumps(FACTS)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Path(process.stdout.readline().strip()), process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_whose_process_is_gone_is_not_running(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path) as (folder, process):
        assert read_facts(folder).status == read_run(folder)["status"] == "running"
        process.send_signal(number)
        process.wait(30)
        assert read_facts(folder).status == read_run(folder)["status"] == UNTOLD
    # What it wrote is left as it is.
    assert json.loads((folder / "run.json").read_text())["status"] == "running"


def test_a_run_that_told_its_end_is_believed(tmp_path: Path) -> None:
    results = Results(tmp_path, FACTS)
    assert read_run(results.folder)["status"] == "running"
    results.close("complete", verdicts=0)
    assert read_run(results.folder)["status"] == "complete"
    assert "held" not in read_run(results.folder)
    tell_end(results.folder, "ended at once by SIGTERM", "SIGTERM", "tokgate gate")
    assert read_run(results.folder)["status"] == "complete"


@pytest.mark.parametrize("held", [None, False])
def test_where_no_lock_was_held_a_run_is_as_it_says(tmp_path: Path, held: bool | None) -> None:
    """An older tokgate's, or one on a file system without locks: nobody can tell."""
    results = Results(tmp_path, FACTS)
    results.close("complete")
    facts = {**read_run(results.folder), "status": "running", **({} if held is None else {"held": held})}
    (results.folder / "run.json").write_text(json.dumps(facts))
    assert read_run(results.folder)["status"] == "running"


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, os.strerror(37))

    monkeypatch.setattr("fcntl.flock", no_locks)
    results = Results(tmp_path, FACTS)
    assert json.loads((results.folder / "run.json").read_text())["held"] is False
    assert read_run(results.folder)["status"] == "running"
    results.close("complete")
    assert read_run(results.folder)["status"] == "complete"


def test_who_saw_it_end_tells_so_in_its_file(tmp_path: Path) -> None:
    with running(tmp_path) as (folder, process):
        tell_end(folder, "ended at once by SIGKILL", "SIGKILL", "tokgate gate perf_tests")
        assert read_run(folder)["status"] == "running", "the control: it goes on"
        process.kill()
        process.wait(30)
        tell_end(folder, "ended at once by SIGKILL", "SIGKILL", "tokgate gate perf_tests")
    told = json.loads((folder / "run.json").read_text())
    assert told["status"] == "interrupted" and "held" not in told
    assert told["interrupted"] == {
        "why": "ended at once by SIGKILL",
        "signal": "SIGKILL",
        "again": "tokgate gate perf_tests",
    }


@pytest.mark.parametrize(
    ("goes_on", "said"),
    [
        (True, "it is 'running', not complete"),
        (False, "it ended without a word (killed, or interrupted twice), not complete"),
    ],
)
def test_accept_says_whether_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], goes_on: bool, said: str
) -> None:
    recorded = next((ROOT / "tests/assets/h200-x2/gates/two").glob("*-*-*"))
    folder = tmp_path / "r" / recorded.name
    shutil.copytree(recorded, folder)
    facts = {**json.loads((folder / "run.json").read_text()), "status": "running", "held": True}
    (folder / "run.json").write_text(json.dumps(facts))
    descriptor = hold(folder) if goes_on else None
    try:
        asked = [recorded.name, f"--results={folder.parent}", f"--baselines={tmp_path / 'b'}", "--reason=x"]
        assert command(["accept", *asked]) == 2
    finally:
        if descriptor is not None:
            os.close(descriptor)
    assert said in capsys.readouterr().err
