"""What `tokgate accept` says of how to review: a command that shows what was written, or none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.test_accept_interrupted import WHOLE, accept


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "a repository"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def said(capsys: pytest.CaptureFixture[str]) -> str:
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("4 baselines; ")
    return line.removeprefix("4 baselines; ")


def shown(command: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_outside_a_repository_no_git_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accept(tmp_path / "b", "--profiles", WHOLE) == 0
    assert said(capsys) == f"review them in {tmp_path / 'b'}, which is in no git repository"


@pytest.mark.parametrize("here", [True, False])
def test_in_a_repository_the_command_shows_what_is_new(
    repository: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    here: bool,
) -> None:
    """Also from elsewhere, and in a linked working tree's folders, where ``.git`` is a file."""
    monkeypatch.chdir(repository if here else tmp_path)
    stored = Path("baselines") if here else repository / "baselines"
    assert accept(stored, "--profiles", WHOLE) == 0
    told = said(capsys)
    assert told.startswith("review with: git add -N baselines" if here else "review with: git -C '")
    difference = shown(told.removeprefix("review with: "), Path.cwd())
    for profile in WHOLE.split(","):
        assert f"+++ b/baselines/nvidia-h200-x2/{profile}/chat-bs1.yaml" in difference
