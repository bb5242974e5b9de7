"""The scripts that the workflows call: gate.yml's are run in order against the emulator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.ci.workflows import FOLDER, ROOT, Job, workflow

ONE_CASE = "--profiles=eagle3-graphs --workloads=chat-bs1 --runs=2"


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The working tree as a repository of its own: a base branch and, on top of it, a change."""
    folder = tmp_path / "clone"
    listed = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    for name in filter(None, listed.split("\0")):
        if name.startswith(("tests/", "docs/")) or not (ROOT / name).is_file():
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "base")
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    (folder / "README.md").write_text("changed\n")
    git(folder, "commit", "--quiet", "--all", "--message", "change")
    return folder


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Looks like the .venv that ci/environment.sh makes, and is this Python."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    shutil.copyfile(ROOT / "ci" / "locks" / "dev.txt", folder / "tokgate-lock")
    return folder


@pytest.fixture
def env(venv: Path, tmp_path: Path) -> dict[str, str]:
    """What GitHub and the runner set, and nothing that the machine of this test has set."""
    return {
        "HOME": str(tmp_path / "home"),
        "TOKGATE_HOME": str(tmp_path / "tokgate-home"),
        "TOKGATE_VENV": str(venv),
        "TOKGATE_ENGINE": "emulated:steady",
        "GITHUB_BASE_REF": "main",
        "GITHUB_RUN_ID": "4711",
        "TOKGATE_LABELS": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def pin(clone: Path, version: str) -> None:
    (clone / "ci" / "sglang.pin").write_text(f"{version}\n")
    git(clone, "commit", "--quiet", "--all", "--message", f"SGLang {version}")


def decided(clone: Path, env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Outputs of gate.yml's first job."""
    job = Job(clone, env, tmp_path)
    assert job.run(workflow(FOLDER / "gate.yml")["jobs"]["decide"], {}), job.said
    return job.outputs["decide"]


def test_change_of_the_pin_is_a_bump(clone: Path, env: dict[str, str], tmp_path: Path) -> None:
    old = (ROOT / "ci" / "sglang.pin").read_text().strip()
    pin(clone, "9.9.9")
    assert decided(clone, env, tmp_path) == {
        "kind": "bump",
        "reason": f"ci/sglang.pin: {old} -> 9.9.9",
        "versions": f"{old} 9.9.9",
    }


def test_pin_that_only_the_base_branch_moved_is_no_bump(
    clone: Path, env: dict[str, str], tmp_path: Path
) -> None:
    git(clone, "checkout", "--quiet", "-b", "change")
    git(clone, "checkout", "--quiet", "--detach", "origin/main")
    pin(clone, "9.9.9")
    git(clone, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(clone, "checkout", "--quiet", "change")
    assert decided(clone, env, tmp_path)["kind"] == "none"


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ('[\n  "docs",\n  "gpu-gate"\n]', "gate"),
        ("gpu-gate", "gate"),
        ('[\n  "no-gpu-gate"\n]', "none"),
        ("[]", "none"),
        ("null", "none"),
        ("", "none"),
    ],
)
def test_label_asks_for_the_gate(
    labels: str, kind: str, clone: Path, env: dict[str, str], tmp_path: Path
) -> None:
    assert decided(clone, {**env, "TOKGATE_LABELS": labels}, tmp_path)["kind"] == kind


def test_by_hand_is_at_least_the_gate(clone: Path, env: dict[str, str], tmp_path: Path) -> None:
    by_hand = {**env, "TOKGATE_ALWAYS": "1", "GITHUB_BASE_REF": ""}
    assert decided(clone, by_hand, tmp_path)["kind"] == "gate"


def test_base_that_is_not_there_is_said(clone: Path, env: dict[str, str], tmp_path: Path) -> None:
    found = decided(clone, {**env, "GITHUB_BASE_REF": "nowhere"}, tmp_path)
    assert (found["kind"], found["reason"]) == (
        "none",
        "there is no origin/nowhere to compare ci/sglang.pin with",
    )


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
    assert green, job.said
    comment = (clone / "ci-report" / "comment.md").read_text().splitlines()
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


class Api(ThreadingHTTPServer):
    """As much of GitHub's API for issue comments as ci/comment.py uses."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.comments: list[dict[str, Any]] = []
        self.seen: list[tuple[str, str, str]] = []
        self.status = 200


class Handler(BaseHTTPRequestHandler):
    server: Api

    def log_message(self, format: str, *args: object) -> None:
        """Not on the test's output."""

    def do_GET(self) -> None:
        query = dict(pair.split("=") for pair in self.path.partition("?")[2].split("&"))
        size, page = int(query["per_page"]), int(query["page"])
        self._answer(self.server.comments[size * (page - 1) : size * page])

    def do_POST(self) -> None:
        comment = {**self._body(), "id": len(self.server.comments) + 1, "user": {"type": "Bot"}}
        self.server.comments.append(comment)
        self._answer(comment)

    def do_PATCH(self) -> None:
        comment = self.server.comments[int(self.path.rpartition("/")[2]) - 1]
        comment.update(self._body())
        self._answer(comment)

    def _body(self) -> dict[str, Any]:
        found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert isinstance(found, dict)
        return found

    def _answer(self, data: object) -> None:
        authorization = str(self.headers["Authorization"])
        self.server.seen.append((self.command, self.path.partition("?")[0], authorization))
        content = json.dumps(data).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def post(api: Api, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The comment job's script, isolated: it runs where nothing is installed."""
    told = {
        "GITHUB_API_URL": f"http://127.0.0.1:{api.server_address[1]}",
        "GITHUB_REPOSITORY": "owner/name",
        "GITHUB_TOKEN": "s3cret",
        "PR_NUMBER": "7",
        **env,
    }
    script = [sys.executable, "-I", "-S", str(ROOT / "ci" / "comment.py"), str(path)]
    return subprocess.run(script, env=told, capture_output=True, text=True, check=False)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "comment.md"
    path.write_text("<!-- tokgate -->\nfirst\n")
    return path


def test_there_is_one_comment_however_often_the_gate_runs(api: Api, text: Path) -> None:
    # More than a page of others, one of which a person began with our mark.
    api.comments = [{"id": n + 1, "body": "hello", "user": {"type": "User"}} for n in range(150)]
    api.comments[3]["body"] = "<!-- tokgate -->\nmine"
    first = post(api, text)
    assert (first.returncode, first.stdout.split()[0]) == (0, "wrote"), first.stderr
    text.write_text("<!-- tokgate -->\nsecond\n")
    second = post(api, text)
    assert (second.returncode, second.stdout.split()[0]) == (0, "updated"), second.stderr
    assert len(api.comments) == 151
    assert api.comments[150]["body"] == "<!-- tokgate -->\nsecond\n"
    assert api.comments[3]["body"] == "<!-- tokgate -->\nmine"
    assert {authorization for _, _, authorization in api.seen} == {"Bearer s3cret"}
    assert ("POST", "/repos/owner/name/issues/7/comments", "Bearer s3cret") in api.seen
    assert ("PATCH", "/repos/owner/name/issues/comments/151", "Bearer s3cret") in api.seen


def test_comment_gets_its_mark_and_is_not_too_long(api: Api, text: Path) -> None:
    text.write_text("x" * 100_000)
    assert post(api, text).returncode == 0
    assert api.comments[0]["body"].startswith("<!-- tokgate -->\nxxx")
    assert len(api.comments[0]["body"]) < 65_536


def test_refusal_is_told_without_the_token(api: Api, text: Path) -> None:
    api.status = 403
    done = post(api, text)
    assert done.returncode == 3
    assert "status 403" in done.stderr
    assert "s3cret" not in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_api_that_does_not_answer(api: Api, text: Path) -> None:
    done = post(api, text, GITHUB_API_URL="http://127.0.0.1:9")
    assert (done.returncode, "Traceback" in done.stderr) == (3, False)


def test_what_is_not_set_is_named(api: Api, text: Path) -> None:
    done = post(api, text, PR_NUMBER="")
    assert (done.returncode, done.stderr) == (2, "comment: not set: PR_NUMBER\n")


@pytest.mark.slow
def test_nightly_calibrates_and_remembers(clone: Path, env: dict[str, str], tmp_path: Path) -> None:
    env = {**env, "TOKGATE_GATE_OPTIONS": ONE_CASE}
    job = Job(clone, env, tmp_path)
    job.run(workflow(FOLDER / "nightly.yml")["jobs"]["calibrate"], {})
    night = tmp_path / "tokgate-home" / "nightly"
    calibration = night / "calibrations" / "emulated-steady" / "eagle3-graphs" / "chat-bs1.json"
    assert calibration.is_file(), job.said
    lines = [json.loads(line) for line in (night / "history.jsonl").read_text().splitlines()]
    assert {line["metric"] for line in lines} >= {"output_tok_s", "ttft_ms"} or lines, lines
    assert len({line["run"] for line in lines}) == 2
    assert (clone / "ci-history" / "history.jsonl").is_file()
    assert "| chat-bs1[eagle3-graphs] |" in (tmp_path / "summary.md").read_text()
