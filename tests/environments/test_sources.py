"""Environments of a commit, a git address, a folder and a wheel: the real builders on small projects."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from tests.environments.made import answer, silent
from tests.environments.wheels import project, wheel
from tokgate.environments.engine import make
from tokgate.environments.lock import Lock
from tokgate.environments.wanted import parse
from tokgate.errors import HostFault, UsageFault

pytestmark = pytest.mark.usefixtures("offline")


def repository(folder: Path, *answers: int, subdirectory: str = "python") -> list[str]:
    """A repository with a commit for each answer; the project's version counts up."""

    def git(*arguments: str) -> str:
        command = [
            "git",
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.org",
            "-C",
            str(folder),
            *arguments,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    folder.mkdir()
    git("init", "--quiet", "--initial-branch=main")
    commits = []
    for number, value in enumerate(answers):
        project(folder / subdirectory, "sglang", f"0.5.{20 + number}", f"ANSWER = {value}", "kernel==2")
        git("add", ".")
        git("commit", "--quiet", "--message", f"answer {value}")
        commits.append(git("rev-parse", "HEAD"))
    return commits


def test_commit_of_a_clone(tmp_path: Path) -> None:
    old, new = repository(tmp_path / "clone", 1, 2)
    root = tmp_path / "root"
    made = [make(parse(f"commit:{sha}", tmp_path / "clone"), root, silent) for sha in (old, new)]
    assert [answer(one) for one in made] == ["1", "2"]
    assert made[0].name == f"sglang-0.5.20-commit-{old[:12]}"
    assert made[0].lock_file.read_text().startswith(f"# sglang of commit {old}; CPython")
    assert str(tmp_path) not in made[0].lock_file.read_text()
    # The clone is as it was: still on its branch, nothing built in it.
    status = ["git", "-C", str(tmp_path / "clone"), "status", "--porcelain", "--branch"]
    assert subprocess.run(status, capture_output=True, text=True, check=True).stdout == "## main\n"


def test_git_address_with_a_branch_and_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(tmp_path / "clone", 7, subdirectory="deep/er")
    text = f"sglang @ git+file://{tmp_path}/clone@main#subdirectory=deep/er"
    root = tmp_path / "root"
    made = make(parse(text), root, silent)
    assert answer(made) == "7"
    builds: list[str] = []
    monkeypatch.setattr("tokgate.environments.sources._build", lambda *_: builds.append("built"))
    assert not make(parse(text), root, silent).built
    assert builds == []  # the commit's wheel was kept


@pytest.mark.parametrize("ref", ["0" * 40, "nothing", "--version"])
def test_commit_that_is_not_there(ref: str, tmp_path: Path) -> None:
    repository(tmp_path / "clone", 1)
    with pytest.raises(UsageFault, match=f"has no commit '{ref}'"):
        make(parse(f"commit:{ref}", tmp_path / "clone"), tmp_path / "root", silent)


def test_folder_is_not_built_in_and_a_change_is_another_environment(tmp_path: Path) -> None:
    folder = project(tmp_path / "source", "sglang", "0.5.17", "ANSWER = 3", "kernel==1")
    first = make(parse(str(folder)), tmp_path / "root", silent)
    assert answer(first) == "3"
    assert not (folder / "droppings").exists()
    assert not make(parse(str(folder)), tmp_path / "root", silent).built
    (folder / "code.txt").write_text("ANSWER = 4")
    second = make(parse(str(folder)), tmp_path / "root", silent)
    assert second.name != first.name
    assert (answer(first), answer(second)) == ("3", "4")


def test_wheel_takes_the_place_of_the_indexs_version(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    path = wheel(own, "sglang", "0.5.15", "ANSWER = 99", requires="kernel==2")
    made = make(parse(str(path)), tmp_path / "root", silent)
    assert answer(made) == "99"
    lock = Lock.parse(made.lock_file.read_text())
    assert hashlib.sha256(path.read_bytes()).hexdigest() in lock.blocks["sglang"]


def test_repository_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="is no git clone"):
        make(parse("commit:abc", tmp_path), tmp_path / "root", silent)


def test_folder_without_a_project(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="holds neither a pyproject"):
        make(parse(str(tmp_path)), tmp_path / "root", silent)


def test_build_that_fails_shows_its_last_lines(tmp_path: Path) -> None:
    folder = project(tmp_path / "source", "sglang", "0.5.17")
    (folder / "backend.py").write_text("raise RuntimeError('no compiler here')")
    with pytest.raises(HostFault, match="building the wheel failed") as caught:
        make(parse(str(folder)), tmp_path / "root", silent)
    assert any("no compiler here" in line for line in caught.value.details)
