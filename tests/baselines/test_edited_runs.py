"""``tokgate accept`` of runs whose files were edited after they were measured."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokgate import baselines
from tokgate.analysis import calibration_file
from tokgate.cli import run
from tokgate.errors import UsageFault
from tokgate.gate.results import Results, read_run

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


def test_the_control_is_accepted_and_stays_inside(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accept(folder) == 0
    # Recorded before runs told of their samples: what cannot be checked is said.
    assert "note: run.json tells neither number nor digest of its samples" in capsys.readouterr().out
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


def odd_json(data: dict[str, Any], key: str, value: object) -> None:
    *above, last = key.split(".")
    for part in above:
        data = data[part]
    if value is ...:
        del data[last]
    else:
        data[last] = value


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("void", ["x"], "void.0 is 'x', not an object"),
        ("void", 3, "void is 3, not a list"),
        ("advisory", [[1]], "advisory.0 is [1], not an object"),
        ("requests", ..., "lacks requests"),
        ("requests", [3], "requests.0 is 3, not an object"),
        ("requests", {"a": 1}, "requests is {'a': 1}, not a list"),
        ("requests", [{}], "Request lacks index, outcome, intended_s"),
        ("identity", None, "identity is None, not an object"),
        ("identity.run", ..., "Identity lacks run"),
        ("metrics", ["a"], "metrics is ['a'], not an object"),
        ("contention", 3, "contention is 3, not an object"),
        ("duration_s", ..., "lacks duration_s"),
    ],
)
def test_a_sample_of_another_shape_is_refused_in_words(
    folder: Path, key: str, value: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(first(folder), lambda data: odd_json(data, key, value))
    assert accept(folder) == 2
    err = capsys.readouterr().err
    assert f"{first(folder).name}: not a sample: {said}\n" in err and "Error" not in err


@pytest.mark.parametrize("text", ["3", "[3]", '"x"', "[" * 200_000], ids=["3", "[3]", "x", "deep"])
def test_a_sample_that_is_no_object_is_refused(
    folder: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first(folder).write_text(text)
    assert accept(folder) == 2
    err = capsys.readouterr().err
    assert f"{first(folder).name}: not " in err and "Error" not in err


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("make", "said"), [(os.mkfifo, "is no file"), (os.mkdir, "holds no samples")])
def test_a_sample_that_is_no_file_is_refused_and_not_waited_for(
    folder: Path, make: Callable[[Path], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(folder / CASE / "x-r99.sample.json")
    assert accept(folder) == 2
    assert f"x-r99.sample.json: {said}" in capsys.readouterr().err


VERDICT = '{"kind": "PASS", "subject": "a", "headline": "b", "body": [], "files": [], "evidence": {}}\n'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (bytes(range(256)), "verdicts.jsonl: is not UTF-8 (byte 128)"),
        (b"3\n", "verdicts.jsonl:1: not a verdict: is 3, not an object"),
        (b"{}\n", "verdicts.jsonl:1: not a verdict: lacks kind, subject, headline"),
        (VERDICT.replace("PASS", "x").encode(), "verdicts.jsonl:1: not a verdict: kind is 'x'"),
        (VERDICT.replace("{}", "[]").encode(), "verdicts.jsonl:1: not a verdict: evidence is []"),
        (VERDICT.replace("[]", "3").encode(), "verdicts.jsonl:1: not a verdict: body is 3"),
        (VERDICT.replace('"a"', "3").encode(), "verdicts.jsonl:1: not a verdict: subject is 3"),
        (VERDICT.replace('"a"', '"a", "x": 1').encode(), "verdicts.jsonl:1: not a verdict: has no field x"),
        (b"[" * 200_000 + b"\n", "verdicts.jsonl:1: not a verdict: "),
    ],
    ids=["bytes", "3", "{}", "kind", "evidence", "body", "subject", "more", "deep"],
)
def test_verdicts_that_cannot_be_read_are_refused(
    folder: Path, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "verdicts.jsonl").write_bytes(content)
    assert accept(folder) == 2
    err = capsys.readouterr().err
    assert said in err and "Error" not in err


@pytest.mark.parametrize("content", [bytes(range(256)), b"[" * 200_000], ids=["bytes", "deep"])
def test_a_run_file_that_cannot_be_read_is_refused(
    folder: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "run.json").write_bytes(content)
    assert accept(folder) == 2
    assert "run.json: not JSON" in capsys.readouterr().err


@pytest.mark.timeout(60)
def test_verdicts_that_are_no_file_are_not_waited_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "verdicts.jsonl").unlink()
    os.mkfifo(folder / "verdicts.jsonl")
    assert accept(folder) == 2
    assert "verdicts.jsonl: is no file" in capsys.readouterr().err


def said_of_samples(folder: Path) -> dict[str, object]:
    """What a run would say of its samples, as it ends."""
    made = Results(folder.parents[1] / "other", {})
    shutil.copytree(folder / "samples", made.folder / "samples", dirs_exist_ok=True)
    made.close("complete", verdicts=30)
    found: dict[str, object] = read_run(made.folder)["samples"]
    return found


def test_a_run_that_says_what_it_holds_is_accepted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = said_of_samples(folder)
    assert told["count"] == len(list((folder / CASE).iterdir()))
    edit(folder / "run.json", lambda data: data.update({"samples": told, "verdicts": count_verdicts(folder)}))
    assert accept(folder) == 0
    assert "tells neither number" not in capsys.readouterr().out


def count_verdicts(folder: Path) -> int:
    return len((folder / "verdicts.jsonl").read_text().splitlines())


@pytest.mark.parametrize("what", ["removed", "added", "edited", "renamed"])
def test_samples_that_are_not_those_of_the_run_are_refused(
    folder: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = said_of_samples(folder)
    edit(folder / "run.json", lambda data: data.update({"samples": told, "verdicts": count_verdicts(folder)}))
    path = first(folder)
    if what == "removed":
        path.unlink()
    elif what == "added":
        shutil.copy(path, path.with_name("x-r99.sample.json"))
    elif what == "renamed":
        path.rename(path.with_name("x-r99.sample.json"))
    else:
        edit(path, lambda data: data["metrics"].update({"output_tok_s": 8000.0}))
    assert accept(folder) == 2
    said = capsys.readouterr().err
    number = {"removed": -1, "added": 1}.get(what)
    if number is None:
        assert "its samples are not as it stored them" in said
    else:
        assert f"it holds {told['count'] + number} of its {told['count']} samples" in said
    assert written(folder) == []


@pytest.mark.parametrize("number", [-1, 3, 10_000])
@pytest.mark.parametrize("status", ["complete", "interrupted"])
def test_another_number_of_verdicts_is_refused(
    folder: Path, number: int, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(folder / "run.json", lambda data: data.update({"verdicts": number, "status": status}))
    assert accept(folder) == 2
    said = capsys.readouterr().err
    assert f"it holds {count_verdicts(folder)} of its {number} verdicts" in said or "verdicts: " in said


def test_a_run_that_tells_its_samples_tells_its_verdicts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = said_of_samples(folder)
    edit(folder / "run.json", lambda data: data.update({"samples": told, "verdicts": None}))
    assert accept(folder) == 2
    assert "does not tell verdicts" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["other", {}, None, ""])
def test_another_host_class_is_refused(
    folder: Path, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(folder / "run.json", lambda data: data.update({"host_class": value}))
    assert accept(folder) == 2
    assert "host" in capsys.readouterr().err
