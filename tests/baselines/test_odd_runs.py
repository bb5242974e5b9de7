"""``tokgate accept`` of runs that were edited, copied or never finished: refused with a message, never a traceback."""

from __future__ import annotations

import json
import math
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tokgate import accepting, baselines
from tokgate.cli import run
from tokgate.errors import UsageFault
from tokgate.load.sample import Sample, Void, twice

ROOT = Path(__file__).parents[2]
RUN = next((ROOT / "tests/assets/h200").glob("*-*-*"))
Make = Callable[..., Sample]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / RUN.name
    shutil.copytree(RUN / "samples/eagle3-graphs/chat-bs8", folder / "samples/eagle3-graphs/chat-bs8")
    for name in ("run.json", "verdicts.jsonl"):
        shutil.copy(RUN / name, folder)
    return tmp_path / "results"


def accept(results: Path, name: str = RUN.name) -> int:
    stored = results.parent / "baselines"
    return run(["accept", name, f"--results={results}", f"--baselines={stored}", "--reason=x"])


def edit(results: Path, **changes: Any) -> None:
    path = results / RUN.name / "run.json"
    facts = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in facts.items() if value is not ...}))


def test_the_control_is_accepted(results: Path) -> None:
    assert accept(results) == 0


@pytest.mark.parametrize(
    "key", ["status", "gated_metrics", "profiles", "host_warnings", "run", "engine_kind"]
)
@pytest.mark.parametrize("value", [None, 3, math.nan, "", [1], {"a": 1}, ...])
def test_a_run_file_with_an_odd_value_is_refused(
    results: Path, key: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(results, **{key: value})
    assert accept(results) == 2
    err = capsys.readouterr().err
    assert key in err and "run.json" in err


def test_what_a_run_does_not_tell_is_not_taken_as_nothing(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(results, engine_kind="emulated", engine_faults=...)
    assert accept(results) == 2
    assert "does not tell engine_faults" in capsys.readouterr().err
    edit(results, engine_faults=[])
    assert accept(results) == 0


@pytest.mark.parametrize("content", [None, ""])
def test_a_run_without_a_verdict_is_refused(
    results: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that hung, and whose verdicts were lost, would look like one that did not."""
    path = results / RUN.name / "verdicts.jsonl"
    path.unlink() if content is None else path.write_text(content)
    assert accept(results) == 2
    assert "it holds 0 of its 1 verdict" in capsys.readouterr().err


def test_a_copy_of_a_run_is_no_session_of_its_own(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accept(results) == 0
    (results / RUN.name).rename(results / "another")
    assert accept(results, "another") == 2
    assert f"already holds run {RUN.name}" in capsys.readouterr().err


def record(root: Path, samples: list[Sample], name: str = "r1") -> list[Path]:
    return accepting.accept(
        root,
        samples,
        run=name,
        reason="x",
        metrics=["output_tok_s"],
        new_epoch=False,
        tokgate_version="0",
    )


def test_two_that_accept_at_once_lose_no_session(
    tmp_path: Path, make_sample: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first waits after it has read; the second, if it can read too, would write what lacks the first's."""
    record(tmp_path, [make_sample({"output_tok_s": 82.0})])
    load, both = baselines.load, threading.Barrier(2)

    def slow(path: Path) -> baselines.Baseline:
        found = load(path)
        try:
            both.wait(0.5)
        except threading.BrokenBarrierError:
            both.reset()
        return found

    monkeypatch.setattr(accepting, "load", slow)
    threads = [
        threading.Thread(target=record, args=(tmp_path, [make_sample({"output_tok_s": 82.0})], name))
        for name in ("r2", "r3")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = baselines.read(tmp_path, "emulated-founding", "baseline", "chat-bs1")
    assert found is not None and sorted(s.run for s in found.sessions) == ["r1", "r2", "r3"]
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["chat-bs1.yaml"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_value_that_is_no_measurement_becomes_no_baseline(
    tmp_path: Path, make_sample: Make, value: float
) -> None:
    with pytest.raises(UsageFault, match=r"output_tok_s is .* not a measurement"):
        record(tmp_path, [make_sample({"output_tok_s": 82.0}), make_sample({"output_tok_s": value}, run=1)])
    assert not list(tmp_path.rglob("*.yaml"))


def test_a_copied_run_is_refused_and_one_beside_its_void_twin_is_not(
    tmp_path: Path, make_sample: Make
) -> None:
    one = make_sample({"output_tok_s": 82.0})
    with pytest.raises(UsageFault, match="holds a run more than once") as caught:
        record(tmp_path, [one, make_sample({"output_tok_s": 82.0}, run=1), one])
    assert caught.value.details == ("run 0 of launch l1 (chat-bs1[baseline])",)
    void = replace(one, void=(Void("steal", 0.2, 0.02, "share", "steal"),))
    assert twice([one, void]) == []


@pytest.mark.parametrize("key", ["sglang_version", "profile_digest", "host_class"])
def test_runs_of_two_builds_are_no_session(tmp_path: Path, make_sample: Make, key: str) -> None:
    other = make_sample({"output_tok_s": 82.0}, run=1, **{key: "other"})
    with pytest.raises(UsageFault, match=f"holds runs of more than one {key.replace('_', ' ')}"):
        record(tmp_path, [make_sample({"output_tok_s": 82.0}), other])


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_stored_baseline_that_nobody_can_have_measured_is_refused(
    tmp_path: Path, make_sample: Make, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its digest says."""
    (path,) = record(tmp_path, [make_sample({"output_tok_s": 82.0})])
    text = "[.nan]" if math.isnan(value) else f"[{'.inf' if math.isinf(value) else value}]"
    path.write_text(path.read_text().replace("[82.0]", text))
    monkeypatch.setattr(baselines, "digest", lambda session: session["digest"])
    with pytest.raises(UsageFault) as caught:
        baselines.read(tmp_path, "emulated-founding", "baseline", "chat-bs1")
    assert "samples.output_tok_s: holds what no run can have measured" in str(caught.value)
