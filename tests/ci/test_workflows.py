"""What the workflows are allowed to do, read from their YAML."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ci.workflows import FOLDER, ROOT, WORKFLOWS, workflow

IDS = [path.name for path in WORKFLOWS]
SAME_REPOSITORY = "github.event.pull_request.head.repo.full_name == github.repository"
PINNED = re.compile(r"^(?P<action>[\w.-]+/[\w./-]+)@(?P<commit>[0-9a-f]{40})$")
PAGE = ROOT / "docs" / "decisions" / "pinned-actions.md"


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found = workflow(path)["jobs"]
    assert isinstance(found, dict)
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(path).values() for step in job["steps"]]


def self_hosted(job: dict[str, Any]) -> bool:
    return "self-hosted" in job["runs-on"]


def test_there_are_three() -> None:
    assert IDS == ["ci.yml", "gate.yml", "nightly.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=IDS)
def test_nothing_is_permitted_but_what_a_job_asks_for(path: Path) -> None:
    assert workflow(path)["permissions"] == {}
    for name, job in jobs(path).items():
        writes = {what for what, how in job["permissions"].items() if how != "read"}
        assert writes == ({"pull-requests"} if (path.name, name) == ("gate.yml", "comment") else set())


@pytest.mark.parametrize("path", WORKFLOWS, ids=IDS)
def test_triggers(path: Path) -> None:
    triggers = workflow(path)["on"]
    expected = {
        "ci.yml": {"push", "pull_request"},
        "gate.yml": {"pull_request", "workflow_dispatch"},
        "nightly.yml": {"schedule", "workflow_dispatch"},
    }
    # pull_request_target and workflow_run would run with this repository's rights on what a fork sends.
    assert set(triggers) == expected[path.name]


@pytest.mark.parametrize("path", WORKFLOWS, ids=IDS)
def test_no_job_on_our_machines_runs_what_a_fork_sends(path: Path) -> None:
    found = jobs(path)
    for job in found.values():
        if not self_hosted(job) or "pull_request" not in workflow(path)["on"]:
            continue
        guards = [job, *(found[name] for name in _list(job.get("needs")))]
        assert any(SAME_REPOSITORY in guard.get("if", "") for guard in guards)
        # A guard that a needed job's skipping could get around would be none.
        assert "always()" not in job.get("if", "")


def _list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


@pytest.mark.parametrize("path", WORKFLOWS, ids=IDS)
def test_every_job_ends_and_a_step_ends_before_its_job(path: Path) -> None:
    for job in jobs(path).values():
        limit = job["timeout-minutes"]
        assert 0 < limit <= 360
        for step in job["steps"]:
            assert step.get("timeout-minutes", 0) < limit
            # On a machine of our own, what hangs must leave time for what ends it.
            if self_hosted(job) and "run" in step:
                assert "timeout-minutes" in step, step["run"]


def test_what_measures_and_what_reports_fit_into_the_jobs_time() -> None:
    for path, name in (("gate.yml", "gpu"), ("nightly.yml", "calibrate")):
        job = jobs(FOLDER / path)[name]
        longest = max(step["timeout-minutes"] for step in job["steps"] if "timeout-minutes" in step)
        always = sum(step["timeout-minutes"] for step in job["steps"] if step.get("if") == "always()")
        assert longest + always < job["timeout-minutes"]


def test_one_job_at_a_time_on_the_gpu_and_none_is_cut_off() -> None:
    groups = []
    for path in WORKFLOWS:
        for job in jobs(path).values():
            if self_hosted(job):
                groups.append(job["concurrency"])
    assert groups == [{"group": "tokgate-gpu", "cancel-in-progress": False}] * 2


@pytest.mark.parametrize("name", ["gate.yml", "nightly.yml"])
def test_leftovers_are_ended_and_results_kept_whatever_happened(name: str) -> None:
    job = next(job for job in jobs(FOLDER / name).values() if self_hosted(job))
    always = [step for step in job["steps"] if step.get("if") == "always()"]
    assert [step["run"] for step in always if "run" in step] == ["bash ci/reap.sh", "bash ci/report.sh"]
    uploads = [step for step in always if "upload-artifact" in step.get("uses", "")]
    assert any("results/" in step["with"]["path"] for step in uploads)
    assert any("ci-report/" in step["with"]["path"] for step in uploads)


@pytest.mark.parametrize("path", WORKFLOWS, ids=IDS)
def test_actions_are_pinned_to_commits_that_the_page_cites(path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for step in steps(path):
        if "uses" not in step:
            continue
        found = PINNED.match(step["uses"])
        assert found, f"{step['uses']}: by tag"
        row = re.search(
            rf"^\| `{re.escape(found['action'])}` \| (v[\d.]+) \| `{found['commit']}` \|", page, re.M
        )
        assert row, f"{step['uses']} is not in {PAGE.name}"
        # Dependabot and people read the version from the comment.
        assert f"{step['uses']} # {row[1]}\n" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", WORKFLOWS, ids=IDS)
def test_no_credentials_stay_in_a_checkout(path: Path) -> None:
    for step in steps(path):
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=IDS)
def test_scripts_get_what_others_wrote_by_environment_only(path: Path) -> None:
    """`${{ }}` in a script is text that a shell runs: a branch's name could be a command."""
    for step in steps(path):
        assert "${{" not in step.get("run", "")


def test_the_job_that_may_write_runs_the_base_branchs_script() -> None:
    comment = jobs(FOLDER / "gate.yml")["comment"]
    checkout = next(step for step in comment["steps"] if "checkout" in step.get("uses", ""))
    assert checkout["with"]["ref"] == "${{ github.event.pull_request.base.sha }}"
    assert not self_hosted(comment)


def test_a_job_that_was_cancelled_while_it_waited_leaves_no_red_comment_job() -> None:
    """It has no artifact: the download may fail, and then nothing is commented."""
    download, say = jobs(FOLDER / "gate.yml")["comment"]["steps"][1:]
    assert "download-artifact" in download["uses"] and download["continue-on-error"] is True
    assert say["if"] == "hashFiles('ci-report/comment.md') != ''"


@pytest.mark.parametrize("path", WORKFLOWS, ids=IDS)
def test_every_script_that_is_called_exists(path: Path) -> None:
    for step in steps(path):
        for script in re.findall(r"(?:bash|python3) (\S+)", step.get("run", "")):
            assert (ROOT / script).is_file(), script


def test_no_workflow_pushes() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*WORKFLOWS, *(ROOT / "ci").glob("*.*")])
    assert "git push" not in text and "contents: write" not in text


@pytest.mark.parametrize(
    "words",
    [
        ["yamllint", "--strict", "-c", "ci/yamllint.yaml", ".github"],
        ["zizmor", "--offline", "--quiet", ".github"],
    ],
    ids=["yamllint", "zizmor"],
)
def test_linters_find_nothing(words: list[str]) -> None:
    program = Path(sys.executable).with_name(words[0])
    assert program.is_file(), f"{words[0]} is in ci/locks/dev.txt, but not installed"
    done = subprocess.run([str(program), *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_linter_finds_what_is_planted(tmp_path: Path) -> None:
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    text = (FOLDER / "gate.yml").read_text(encoding="utf-8")
    text = text.replace("run: bash ci/decide.sh", "run: echo ${{ github.event.pull_request.title }}")
    (folder / "gate.yml").write_text(text)
    program = Path(sys.executable).with_name("zizmor")
    done = subprocess.run(
        [str(program), "--offline", "--quiet", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and "template-injection" in done.stdout
