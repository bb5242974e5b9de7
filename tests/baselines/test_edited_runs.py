"""``tokgate accept`` of runs whose files were edited after they were measured."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokgate import baselines
from tokgate.analysis import calibration_file
from tokgate.cli import run
from tokgate.errors import UsageFault

ROOT = Path(__file__).parents[2]
RUN = next((ROOT / "tests/assets/h200").glob("*-*-*"))
CASE = "samples/eagle3-graphs/chat-bs8"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One case of a recorded run, in ``results`` below."""
    made = tmp_path / "in" / "results" / RUN.name
    shutil.copytree(RUN / CASE, made / CASE)
    for name in ("run.json", "verdicts.jsonl"):
        shutil.copy(RUN / name, made)
    return made


def accept(folder: Path) -> int:
    stored = folder.parents[1] / "baselines"
    return run(["accept", str(folder), f"--results={folder.parent}", f"--baselines={stored}", "--reason=x"])


def written(folder: Path) -> list[str]:
    root = folder.parents[2]
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.yaml"))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def first(folder: Path) -> Path:
    return min((folder / CASE).iterdir())


def test_the_control_is_accepted_and_stays_inside(folder: Path) -> None:
    assert accept(folder) == 0
    assert written(folder) == ["in/baselines/nvidia-h200/eagle3-graphs/chat-bs8.yaml"]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("profile", "../../../ESC"),
        ("profile", "/tmp/ESC"),
        ("profile", "startup"),
        ("profile", ".."),
        ("profile", ""),
        ("profile", "baseline"),
        ("workload", "a/b"),
        ("workload", "../x"),
        ("workload", "chat-bs4"),
        ("host_class", ".."),
        ("host_class", "other"),
    ],
)
def test_a_name_that_was_edited_makes_no_file(
    folder: Path, key: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (folder / CASE).iterdir():
        edit(path, lambda data: data["identity"].update({key: name}))
    assert accept(folder) == 2
    said = capsys.readouterr().err
    assert f"{key.replace('_', ' ')} {name!r}" in said and first(folder).name in said
    assert written(folder) == []


def test_a_folder_of_a_profile_that_the_run_does_not_have(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "samples/eagle3-graphs").rename(folder / "samples/other")
    for path in (folder / "samples/other/chat-bs8").iterdir():
        edit(path, lambda data: data["identity"].update({"profile": "other"}))
    assert accept(folder) == 2
    assert "profile 'other'" in capsys.readouterr().err and written(folder) == []
    # One that was measured beside it, to hold it against, is the run's too.
    edit(folder / "run.json", lambda data: data.update({"references": ["other"]}))
    assert accept(folder) == 0


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".", "", "a\0b", "a\n", "x" * 101])
def test_no_path_is_made_of_such_a_name(tmp_path: Path, name: str) -> None:
    for names in ((name, "p", "w"), ("h", name, "w"), ("h", "p", name)):
        with pytest.raises(UsageFault, match="is no name"):
            baselines.path_of(tmp_path, *names)
        with pytest.raises(UsageFault, match="is no name"):
            calibration_file.folder_of(tmp_path, *names)
    with pytest.raises(UsageFault, match="is no name"):
        calibration_file.path_of(tmp_path, "h", "p", "w", name)
