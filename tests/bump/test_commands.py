"""``tokgate bump`` as a user starts it: the dry run, bad input, emulated servers, a kill in the middle."""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokgate.analysis.calibration import AABlock, Calibration, Session
from tokgate.analysis.calibration_file import write_calibration
from tokgate.cli import run
from tokgate.config.profiles import load_profiles
from tokgate.config.workloads import load_workloads
from tokgate.gate.modelstore import identity

ROOT = Path(__file__).parents[2]
MEASURED = "output_tok_s,accept_length"
EngineFile = Callable[..., Path]
Asked = Callable[..., list[str]]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tokgate", "bump", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def bump(*arguments: str, timeout_s: float = 280) -> subprocess.CompletedProcess[str]:
    process = start(*arguments)
    out, err = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a dry run of two versions that are not there prints."""
    asked = ["--from=0.5.13.post1", "--to=0.5.15.post1", "--workloads=chat-bs1", "--metrics=output_tok_s"]
    assert run(["bump", "--dry-run", *asked, "--host-class=nvidia-h200", *arguments]) == 0
    return capsys.readouterr().out


def test_the_dry_run_needs_neither_gpu_nor_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKGATE_HOME", str(tmp_path))
    results = tmp_path / "results"
    told = planned(
        capsys,
        "--profiles=baseline,eagle3-graphs",
        "--blocks=6",
        "--budget-minutes=30",
        "--assume-scatter-percent=13",
        f"--results={results}",
    )
    assert "GPU minutes at most" in told
    # Starts of the baseline are stored for this host class, so nothing is assumed of them.
    assert "a start takes" not in told
    assert "chat-bs1[eagle3-graphs] output_tok_s, limit 3 %, 6 blocks:" in told
    assert "scatter 13 %, assumed" in told
    assert not list(results.glob("*"))


def calibrated(folder: Path, *, began: str = "2026-11-29T12:00:00+00:00", **changed: str) -> tuple[str, ...]:
    """Arguments of a bump that a calibration of 20 blocks is for, but for what is changed of its identity."""
    blocks = tuple(AABlock((100.0 + n, 101.0), (101.0 - n, 100.0)) for n in range(20))
    session = Session(began, blocks)
    where = ("nvidia-h200", "baseline", "chat-bs1", "output_tok_s", "tok/s")
    facts = {
        "engine": "gpu",
        "profile_digest": load_profiles(ROOT / "perf_tests/profiles.yaml").profiles["baseline"].digest,
        "workload_digest": load_workloads(ROOT / "perf_tests/workloads.yaml", "gpu")
        .workloads["chat-bs1"]
        .digest,
        "model": "1b@0123456789ab",
        "block": "4 runs an arm, together",
        **changed,
    }
    write_calibration(folder / "x.yaml", Calibration(*where, "higher", (session,), facts))
    return ("--profiles=baseline", f"--calibration={folder}", f"--results={folder / 'results'}")


def test_the_dry_run_knows_what_is_calibrated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = planned(capsys, *calibrated(tmp_path))
    assert "20 A/A blocks)" in told
    assert "left out" not in told


@pytest.mark.parametrize("key", ["engine", "profile_digest", "workload_digest", "block"])
def test_a_calibration_of_something_else_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    told = planned(capsys, *calibrated(tmp_path, **{key: "another"}))
    assert "A/A blocks)" not in told
    words = f"left out, of something else: {key.replace('_', ' ')}: calibrated another, now "
    assert words in told


def test_a_calibration_of_another_configured_model_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair that is not made yet is known by its preset; the default one of a GPU is 1b."""
    monkeypatch.setenv("TOKGATE_HOME", str(tmp_path / "home"))
    told = planned(capsys, *calibrated(tmp_path), "--model=pair-1b")
    assert "20 A/A blocks)" in told
    assert "whether it is of the same pair is not known, none is made here" in told
    told = planned(capsys, *calibrated(tmp_path), "--model=pair-8b")
    assert "A/A blocks)" not in told
    assert "model: calibrated 1b@0123456789ab, now 8b@" in told


def test_an_old_calibration_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime.datetime.now(datetime.UTC)
    for days, is_old in ((5, False), (700, True)):
        began = (now - datetime.timedelta(days=days)).isoformat(timespec="seconds")
        told = planned(capsys, *calibrated(tmp_path, began=began))
        assert "20 A/A blocks)" in told
        assert (f"is {days} days old (limit 30)" in told) == is_old


def test_two_calibrations_of_the_same_are_not_both_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b").mkdir()
    first, again = calibrated(tmp_path), calibrated(tmp_path / "b")
    told = planned(capsys, *first, again[1])
    assert f"calibration {tmp_path / 'b' / 'x.yaml'} left out: output_tok_s" in told
    assert "has one already" in told


def test_a_calibration_with_fewer_runs_an_arm_is_of_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = planned(capsys, *calibrated(tmp_path), "--runs=2")
    assert "calibrated 4 runs an arm, together, now 2 runs an arm, together" in told


def test_a_calibration_of_another_model_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "mine"
    (model / "target").mkdir(parents=True)
    (model / "target" / "config.json").write_text("{}")
    told = planned(capsys, *calibrated(tmp_path, model="1b@0123456789ab"), f"--model={model}")
    assert "model: calibrated 1b@0123456789ab, now mine@" in told
    told = planned(capsys, *calibrated(tmp_path, model=identity(model)), f"--model={model}")
    assert "20 A/A blocks)" in told


def test_a_dry_run_without_calibration_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = ("--profiles=baseline,eagle3-graphs", f"--calibration={tmp_path}", f"--results={tmp_path}")
    told = planned(capsys, *known)
    assert "unknown for all 2 verdicts, no calibration" in told
    assert told.count("no calibration") == 1
    assert "unknown for the verdict, no calibration" in planned(capsys, *known[1:], "--profiles=baseline")
    told = planned(capsys, *known, "--metrics=accept_length")
    assert "judged over blocks: none" in told and "up to 3 blocks a profile" in told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--from=nowhere", "--to=0.5.15"), "no engine named 'nowhere'"),
        (("--from=emulated", "--from-engine=emulated"), "give one"),
        (("--from=emulated", "--to=emulated", "--profiles=nope"), "no profile 'nope'"),
        (("--from=emulated", "--to=emulated", "--metrics=startup_s"), "not gated of workloads"),
        (("--from=emulated", "--to=emulated", "--parity=nope"), "no parity case 'nope'"),
        (("--from=emulated", "--to=emulated", "--all-at-once", "--one-at-a-time"), "exclude each other"),
        (("--from=emulated", "--to=emulated:nope"), "no scenario 'nope'"),
        (("--resume=latest",), "no bump 'latest'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_bad_input_is_told(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bump", *arguments, f"--results={tmp_path}"]) == 2
    assert words in capsys.readouterr().err


@pytest.fixture
def asked(tmp_path: Path, patient: Path, engine_file: EngineFile) -> Asked:
    """Arguments of a bump of three emulated blocks from 0.5.13.post1 to 0.5.15.post1, which has a fault."""

    def arguments(
        fault: str, *more: str, profiles: str = "baseline", parity: str = "none", metrics: str = MEASURED
    ) -> list[str]:
        return [
            f"--from-engine={engine_file('0.5.13.post1')}",
            f"--to-engine={engine_file('0.5.15.post1', fault)}",
            f"--profiles={profiles}",
            "--workloads=chat-bs1",
            f"--metrics={metrics}",
            "--runs=2",
            "--seed=5",
            "--blocks=3",
            f"--parity={parity}",
            f"--config-folder={patient}",
            f"--results={tmp_path / 'results'}",
            *more,
        ]

    return arguments


def reported(tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of the only bump there, and its verdicts."""
    (folder,) = (tmp_path / "results").glob("bump-*")
    return folder, json.loads((folder / "report.json").read_text())["verdicts"]


def test_a_slow_new_version_that_answers_wrongly(tmp_path: Path, asked: Asked) -> None:
    """Half the speed and another token: REGRESSION and DIVERGED, in every format."""
    done = bump(*asked("slow:3 wrong-token", parity="batch-1"))
    assert done.returncode == 1, done.stdout + done.stderr
    folder, verdicts = reported(tmp_path)
    kinds = {v["evidence"]["metric"]: v["kind"] for v in verdicts}
    assert kinds["output_tok_s"] == "REGRESSION"
    assert kinds["greedy parity"] == "DIVERGED"
    assert kinds["graph replay"] == "PASS"
    text = (folder / "report.md").read_text()
    assert len(text.splitlines()) < 60
    assert "sglang 0.5.13.post1 -> 0.5.15.post1" in text
    assert "arguments that only the new version has" in text
    assert (folder / "report.html").stat().st_size > 10_000
    assert "<failure" in (folder / "junit.xml").read_text()
    assert (folder / "new.lock.txt").read_text() == "sglang==0.5.15.post1\n"


def test_counted_metrics_alone_are_measured_and_a_wrong_token_is_found(tmp_path: Path, asked: Asked) -> None:
    done = bump(*asked("wrong-token:3", profiles="eagle3-graphs", parity="batch-1", metrics="accept_length"))
    assert done.returncode == 1, done.stdout + done.stderr
    verdicts = {v["evidence"]["metric"]: v for v in reported(tmp_path)[1]}
    assert verdicts["greedy parity"]["kind"] == "DIVERGED"
    assert verdicts["accept_length"]["evidence"]["blocks"] == 3
    assert "within the budget" not in done.stdout


@pytest.mark.slow
def test_profiles_together_and_a_hang_of_one(tmp_path: Path, asked: Asked) -> None:
    """The EAGLE-3 server of the new version hangs in a capture that the baseline does not have."""
    done = bump(*asked("capture-hang:draft-extend", "--all-at-once", profiles="baseline,eagle3-graphs"))
    assert done.returncode == 1, done.stdout + done.stderr
    verdicts = reported(tmp_path)[1]
    hang, *others = sorted(verdicts, key=lambda v: v["kind"] != "HANG")
    assert hang["kind"] == "HANG"
    assert hang["evidence"] | {"profile": "eagle3-graphs", "side": "new"} == hang["evidence"]
    assert any(v["evidence"].get("blocks") == 3 for v in others)
    assert all("eagle3" not in v["subject"] for v in others)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_bump_goes_on_to_its_verdict(number: signal.Signals, tmp_path: Path, asked: Asked) -> None:
    results = tmp_path / "results"
    process = start(*asked("slow:3"))
    until = time.monotonic() + 120
    while not list(results.glob("bump-*/blocks/baseline/blocks/0000.json")) and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(process.pid, number)
    process.communicate(timeout=120)
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    (folder,) = results.glob("bump-*")
    if number != signal.SIGKILL:
        assert "interrupted" in (folder / "report.md").read_text()
    done = bump("--resume=latest", f"--results={results}")
    assert done.returncode == 1, done.stdout + done.stderr
    (speed,) = [v for v in reported(tmp_path)[1] if v["evidence"]["metric"] == "output_tok_s"]
    assert speed["kind"] == "REGRESSION"
    assert speed["evidence"]["blocks"] == 3
    assert "block 1 of" not in done.stdout
