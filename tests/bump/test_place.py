"""A bump or bisection is gone on with on its host class only, also where nothing but a fault or a step is stored."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.bump.simulation import CONFIG
from tokgate.bump.place import FILE, keep_place
from tokgate.cli import run
from tokgate.config.engine import Engine
from tokgate.errors import SampleFault, UsageFault
from tokgate.host.stored_file import measured_into

EngineFile = Callable[..., Path]
HERE = {"baseline": "nvidia-h200"}
ENGINES = {"old": Engine("a", "gpu", "0.5.13.post1"), "new": Engine("b", "gpu", "0.5.15.post1")}


def begun(command: str, folder: Path, engine_file: EngineFile) -> None:
    """One that is begun and has no time to measure: an old version and a new one, emulated."""
    old, new = engine_file("0.5.10"), engine_file("0.5.12")
    asked = {
        "bump": (
            f"--from={old}",
            f"--to={new}",
            "--profiles=baseline",
            "--workloads=chat-bs1",
            "--parity=none",
        ),
        "bisect": ("--good=0.5.10", "--bad=0.5.12", f"--engines={folder}/{{version}}.yaml"),
    }[command]
    assert run([command, *asked, f"--config-folder={CONFIG}", *within(folder)]) == 3


def kept(command: str, folder: Path) -> Path:
    """Where one that is begun says its host."""
    (path,) = (folder / "results").glob(f"{command}-*/{FILE}")
    return path


def within(folder: Path) -> tuple[str, ...]:
    return f"--results={folder / 'results'}", "--budget-minutes=0"


@pytest.mark.parametrize("command", ["bump", "bisect"])
def test_another_host_class_is_refused_and_the_same_one_is_not(
    command: str,
    tmp_path: Path,
    engine_file: EngineFile,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun(command, tmp_path, engine_file)
    assert run([command, "--resume=latest", *within(tmp_path)]) == 3
    capsys.readouterr()
    monkeypatch.setattr("tokgate.gate.cards.host_class", lambda *of: "emulated-elsewhere")
    assert run([command, "--resume=latest", *within(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "was measured on emulated-steady, and this host is emulated-elsewhere" in said
    assert "start anew here, without --resume" in said


@pytest.mark.parametrize("command", ["bump", "bisect"])
def test_one_that_another_call_measures_is_not_taken_up(
    command: str, tmp_path: Path, engine_file: EngineFile, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both would measure the same blocks, and one's would be lost."""
    begun(command, tmp_path, engine_file)
    folder = kept(command, tmp_path).parent
    capsys.readouterr()
    # The control: it is refused because it is held.
    assert run([command, "--resume=latest", *within(tmp_path)]) == 3
    assert "is in use" not in capsys.readouterr().err
    with measured_into(folder):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert run([command, "--resume=latest", *within(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert f"{folder} is in use by another tokgate: pid {os.getpid()} (" in said
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", ["bump", "bisect"])
def test_a_folder_that_does_not_say_its_host_is_not_taken_up(
    command: str, tmp_path: Path, engine_file: EngineFile, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(command, tmp_path, engine_file)
    kept(command, tmp_path).unlink()
    assert run([command, "--resume=latest", *within(tmp_path)]) == 2
    assert "does not say on which host class it was measured" in capsys.readouterr().err


def test_each_profile_has_its_class(tmp_path: Path) -> None:
    """With another number of GPUs a profile is of another class."""
    keep_place(tmp_path, HERE | {"tp2": "nvidia-h200-x2"}, ENGINES, None, begun=False)
    keep_place(tmp_path, HERE | {"tp2": "nvidia-h200-x2"}, ENGINES, None, begun=True)
    with pytest.raises(UsageFault, match=r"profile tp2 of .* was measured on nvidia-h200-x2"):
        keep_place(tmp_path, HERE | {"tp2": "nvidia-b200-x2"}, ENGINES, None, begun=True)


@pytest.mark.parametrize(("command", "part"), [("bump", "new"), ("bisect", "bad")])
def test_an_engine_file_that_was_changed_is_refused(
    command: str, part: str, tmp_path: Path, engine_file: EngineFile, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocks of two engines would be one verdict."""
    begun(command, tmp_path, engine_file)
    changed = tmp_path / "0.5.12.yaml"
    before = changed.read_text()
    changed.write_text(before + 'env: {TOKGATE_EMULATOR_FAULT: "slow:1.3"}\n')
    capsys.readouterr()
    assert run([command, "--resume=latest", *within(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"the {part} engine of " in said and "has changed since" in said
    changed.write_text(before)
    assert run([command, "--resume=latest", *within(tmp_path)]) == 3


def test_a_driver_that_changed_is_told(tmp_path: Path) -> None:
    """Each block compares both versions under one driver: no reason to refuse, and none to be silent."""
    assert keep_place(tmp_path, HERE, ENGINES, "580.95.05", begun=False) == []
    assert keep_place(tmp_path, HERE, ENGINES, "580.95.05", begun=True) == []
    (told,) = keep_place(tmp_path, HERE, ENGINES, "590.10", begun=True)
    assert "drivers 580.95.05, 590.10" in told
    assert keep_place(tmp_path, HERE, ENGINES, None, begun=True) == [told]


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"drivers": []}))
    with pytest.raises(SampleFault, match=FILE):
        keep_place(tmp_path, HERE, ENGINES, None, begun=True)
