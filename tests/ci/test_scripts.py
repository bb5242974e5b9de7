"""The scripts that the workflows call: gate.yml's and nightly.yml's are run in order against the emulator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ci.repository import decided, git, pin
from tests.ci.workflows import FOLDER, ROOT, Job, workflow

ONE_CASE = "--profiles=eagle3-graphs --workloads=chat-bs1 --runs=2"


def test_gate_workflow_runs_against_the_emulator(clone: Path, env: dict[str, str], tmp_path: Path) -> None:
    """A label; the gate on one case without a baseline: red, and all that comes after a red gate happens."""
    env = {**env, "TOKGATE_LABELS": "gpu-gate", "TOKGATE_GATE_OPTIONS": ONE_CASE}
    needs = {"decide": decided(clone, env, tmp_path)}
    job = Job(clone, {**env, "TOKGATE_TITLE": needs["decide"]["reason"]}, tmp_path)
    assert not job.run(workflow(FOLDER / "gate.yml")["jobs"]["gpu"], needs)
    assert job.ran == {
        "bash ci/setup_runner.sh": 0,
        "bash ci/engine.sh": 0,
        "bash ci/gate.sh --wait-gpu-s 1800": 1,
        "bash ci/reap.sh": 0,
        "bash ci/report.sh": 0,
    }, job.said
    assert "engine: emulated:steady" in job.said
    comment = (clone / "ci-report" / "comment.md").read_text().splitlines()
    assert comment[:2] == ["<!-- tokgate -->", "### tokgate: label 'gpu-gate'"]
    assert len(comment) < 60
    assert any(line.startswith("| MISSING | chat-bs1[eagle3-graphs]") for line in comment), comment
    assert "chat-bs1[eagle3-graphs]" in (tmp_path / "summary.md").read_text()
    assert list((clone / "results").glob("*/samples/eagle3-graphs/chat-bs1/*.sample.json"))
    # The patch is what `tokgate accept` would write; the repository itself is as it was.
    assert git(clone, "status", "--porcelain", "baselines") == ""
    patch = str(clone / "ci-report" / "baselines.patch")
    git(clone, "apply", patch)
    accepted = next((clone / "baselines" / "emulated-steady").rglob("chat-bs1.yaml"))
    assert "run 4711 of the CI" in accepted.read_text()


def emulated_version(tmp_path: Path, version: str) -> None:
    """An environment of that version as `ci.airgap unpack` leaves it, but emulated."""
    folder = tmp_path / "tokgate-home" / "environments" / f"sglang-{version}"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "engine.yaml").write_text(f"kind: emulated\nversion: {version}\nscenario: steady\n")


ONE_BUMP = "--profiles baseline --workloads chat-bs1 --metrics output_tok_s --runs 2 --blocks 3 --parity none"


def bumped(clone: Path, env: dict[str, str], tmp_path: Path, options: str) -> tuple[Job, bool]:
    """A change of the pin; both versions lie unpacked on the runner, and are the same emulated engine."""
    old = (ROOT / "ci" / "sglang.pin").read_text().strip()
    pin(clone, "0.5.16")
    for version in (old, "0.5.16"):
        emulated_version(tmp_path, version)
    env = {**env, "TOKGATE_ENGINE": "", "TOKGATE_BUMP_OPTIONS": options}
    needs = {"decide": decided(clone, env, tmp_path)}
    told = {"TOKGATE_TITLE": needs["decide"]["reason"], "TOKGATE_VERSIONS": needs["decide"]["versions"]}
    job = Job(clone, {**env, **told}, tmp_path)
    green = job.run(workflow(FOLDER / "gate.yml")["jobs"]["gpu"], needs)
    assert list(job.ran) == [
        "bash ci/setup_runner.sh",
        "bash ci/engine.sh",
        "bash ci/bump.sh --wait-gpu-s 1800",
        "bash ci/reap.sh",
        "bash ci/report.sh",
    ], job.said
    comment = (clone / "ci-report" / "comment.md").read_text().splitlines()
    assert comment[:2] == ["<!-- tokgate -->", f"### tokgate: ci/sglang.pin: {old} -> 0.5.16"]
    assert len(comment) < 60
    return job, green


def test_bump_workflow_compares_the_two_pins(clone: Path, env: dict[str, str], tmp_path: Path) -> None:
    """Planned only, so that it is quick."""
    job, green = bumped(clone, env, tmp_path, f"{ONE_BUMP} --dry-run")
    assert green, job.said
    old = (ROOT / "ci" / "sglang.pin").read_text().strip()
    assert f"--from {old}: the pin of origin/main; --to 0.5.16" in job.said


@pytest.mark.slow
def test_bump_workflow_measures_against_the_emulator(
    clone: Path, env: dict[str, str], tmp_path: Path
) -> None:
    job, green = bumped(clone, env, tmp_path, ONE_BUMP)
    comment = (clone / "ci-report" / "comment.md").read_text().splitlines()
    # Whether a busy machine lets three blocks decide is not for this test; what it could not tell is not green.
    undecided = any("no verdict on the speed of baseline" in line for line in comment)
    assert job.ran["bash ci/bump.sh --wait-gpu-s 1800"] == (3 if undecided else 0), job.said
    assert green != undecided
    assert any("chat-bs1[baseline]" in line and line.startswith("|") for line in comment), comment
    assert not (clone / "ci-report" / "baselines.patch").exists()  # a bump has no baselines


def test_report_of_a_job_that_died_before_the_gate(clone: Path, env: dict[str, str]) -> None:
    done = subprocess.run(["bash", "ci/report.sh", "out"], cwd=clone, env={**os.environ, **env}, check=False)
    assert done.returncode == 0
    assert "No run was stored" in (clone / "out" / "comment.md").read_text()
    assert not (clone / "out" / "baselines.patch").exists()


def test_report_is_cut_and_its_code_block_closed(clone: Path, env: dict[str, str]) -> None:
    run = clone / "results" / "20261129-000000-aaaa"
    run.mkdir(parents=True)
    report = ["# tokgate", "", "| verdict |", "| --- |", "```", *(f"line {n}" for n in range(200)), "```"]
    (run / "report.md").write_text("\n".join(report))
    subprocess.run(["bash", "ci/report.sh", "out"], cwd=clone, env={**os.environ, **env}, check=True)
    lines = (clone / "out" / "comment.md").read_text().splitlines()
    assert len(lines) < 60
    assert sum(line.startswith("```") for line in lines) == 2
    assert lines[-1].endswith("lines more: `report.md` in the artifact.")


def test_the_newest_run_is_told_be_it_a_gate_or_a_bump(clone: Path, env: dict[str, str]) -> None:
    for name in ("20261129-000000-aaaa", "bump-20261128-000000-bbbb", "20261127-000000-cccc"):
        (clone / "results" / name).mkdir(parents=True)
        (clone / "results" / name / "report.md").write_text(f"of {name}\n")
    subprocess.run(["bash", "ci/report.sh", "out"], cwd=clone, env={**os.environ, **env}, check=True)
    assert "of 20261129-000000-aaaa" in (clone / "out" / "comment.md").read_text()


def test_run_that_was_killed_is_told(clone: Path, env: dict[str, str]) -> None:
    (clone / "results" / "20261129-000000-aaaa").mkdir(parents=True)
    subprocess.run(["bash", "ci/report.sh", "out"], cwd=clone, env={**os.environ, **env}, check=True)
    assert "has no report: it was killed" in (clone / "out" / "comment.md").read_text()


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if "__pycache__" not in path.parts and ".git" not in path.parts:
            stat = path.lstat()
            found[str(path.relative_to(folder))] = (stat.st_size, stat.st_mtime_ns if path.is_file() else 0)
    return found


def test_setup_twice_changes_nothing(clone: Path, env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    env = {**os.environ, **env, "TOKGATE_HOME": ""}
    seen = []
    for _ in range(2):
        command = ["bash", "ci/setup_runner.sh"]
        done = subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        seen.append((done.stdout, tree(tmp_path)))
    assert seen[0] == seen[1]
    assert (tmp_path / "home" / ".cache" / "tokgate" / "environments").is_dir()
    assert "0 processes killed" in seen[0][0]


def test_setup_without_git_says_so(clone: Path, env: dict[str, str], tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "dirname"):
        (programs / name).symlink_to(shutil.which(name) or name)
    done = subprocess.run(
        [str(programs / "bash"), "ci/setup_runner.sh"],
        cwd=clone,
        env={**env, "PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "git is needed" in done.stderr


def test_environment_is_made_once_for_each_version_or_taken_from_a_pack(
    clone: Path, env: dict[str, str], tmp_path: Path
) -> None:
    """Without TOKGATE_ENGINE. Both versions lie there unpacked: nothing is resolved, no index is asked."""
    for version in ("1.0", "2.0"):
        folder = tmp_path / "tokgate-home" / "environments" / f"sglang-{version}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    asked = {**os.environ, **env, "TOKGATE_ENGINE": "", "TOKGATE_VERSIONS": "1.0 2.0"}
    asked["GITHUB_OUTPUT"] = str(tmp_path / "output")
    done = subprocess.run(["bash", "ci/engine.sh"], cwd=clone, env=asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("unpacked by ci.airgap") == 2
    assert (tmp_path / "output").read_text() == "engine=sglang-2.0\n"


def test_reap_before_there_is_anything(clone: Path, env: dict[str, str], tmp_path: Path) -> None:
    env = {**os.environ, **env, "TOKGATE_VENV": str(tmp_path / "none")}
    done = subprocess.run(["bash", "ci/reap.sh"], cwd=clone, env=env, capture_output=True, text=True)
    assert (done.returncode, "nothing of tokgate was started" in done.stdout) == (0, True)


@pytest.mark.slow
def test_nightly_calibrates_and_remembers(clone: Path, env: dict[str, str], tmp_path: Path) -> None:
    env = {**env, "TOKGATE_GATE_OPTIONS": ONE_CASE}
    job = Job(clone, env, tmp_path)
    job.run(workflow(FOLDER / "nightly.yml")["jobs"]["calibrate"], {})
    night = tmp_path / "tokgate-home" / "nightly"
    calibration = night / "calibrations" / "emulated-steady" / "eagle3-graphs" / "chat-bs1.json"
    assert calibration.is_file(), job.said
    lines = [json.loads(line) for line in (night / "history.jsonl").read_text().splitlines()]
    assert {line["metric"] for line in lines} >= {"output_tok_s", "ttft_s_p50"}, lines
    assert len({line["run"] for line in lines}) == 2
    assert (clone / "ci-history" / "history.jsonl").is_file()
    assert "| chat-bs1[eagle3-graphs] |" in (tmp_path / "summary.md").read_text()
