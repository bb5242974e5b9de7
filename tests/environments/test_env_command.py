"""`tokgate env` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.environments.conftest import Index, MadeOnce
from tokgate import environments
from tokgate.cli import run


@pytest.fixture
def small_only(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only recipe is that of the small wheels."""
    monkeypatch.setattr("tokgate.cli.env.RECIPES", {"small": index.recipe})


@pytest.mark.usefixtures("small_only")
def test_make_of_what_is_there(made_once: MadeOnce, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["env", "make", "small", "--root", str(made_once.root)]) == 0
    shown = capsys.readouterr().out
    assert "small: there already and unaltered" in shown
    assert shown.endswith(f"use it with: --engine {made_once.made.engine_file}\n")


@pytest.mark.usefixtures("small_only")
def test_list(made_once: MadeOnce, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["env", "list", "--root", str(made_once.root)]) == 0
    assert "small  small wheels: made, 0.0 GB\n" in capsys.readouterr().out
    assert run(["env", "list", "--root", str(tmp_path)]) == 0
    assert "small  small wheels: not made\n" in capsys.readouterr().out


def test_unknown_name_is_a_usage_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["env", "make", "gpu", "--root", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert "cannot make an environment of 'gpu'\ngive one of these:\n  sglang==0.5.15.post1 " in shown


def test_machine_that_cannot_hold_it_is_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run(["env", "make", "cpu", "--root", str(tmp_path / "file")]) == 3
    assert "cannot make 'cpu'" in capsys.readouterr().err


def test_root_follows_tokgate_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKGATE_HOME", str(tmp_path))
    assert environments.root() == tmp_path / "environments"
    monkeypatch.delenv("TOKGATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert environments.root() == tmp_path / ".cache" / "tokgate" / "environments"


@pytest.mark.parametrize(
    "arguments",
    [
        ["sglang==abc"],
        ["requests==2.0"],
        ["sglang==0.5.15", "--python", "abc"],
        ["0.5.15", "--python", "2.7"],
    ],
)
def test_what_cannot_be_is_refused_before_any_installer_runs(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object) -> str:
        raise AssertionError("an installer was run")

    monkeypatch.setattr("tokgate.environments.installer.run", never)
    assert run(["env", "make", *arguments, "--root", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert "expected" in shown or "is not SGLang" in shown
    assert list(tmp_path.iterdir()) == []
