"""Reading trace files: whole, cut off, wrong, large."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from pathlib import Path

import pytest

from tests.trace.kineto import Shape, steps
from tokgate.errors import UsageFault
from tokgate.sglang.trace_spans import label
from tokgate.trace import events
from tokgate.trace.events import EventStream, is_trace
from tokgate.trace.timeline import read_timeline


def written(tmp_path: Path, content: str | bytes, name: str = "t.json") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_every_event_comes_out_as_it_went_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = steps(Shape(), 3)
    path = made.write(tmp_path / "t.json.gz")
    # However the windows of text cut the file.
    for size in (7, 64, 1000, 1 << 20):
        monkeypatch.setattr(events, "_CHUNK", size)
        stream = EventStream(path)
        assert list(stream) == made.events
        assert stream.header["distributedInfo"]["world_size"] == 1
        assert stream.header["traceName"] == "x"
        assert not stream.truncated


def test_a_bare_array_is_a_trace_too(tmp_path: Path) -> None:
    made = steps(Shape(), 2).events
    assert list(EventStream(written(tmp_path, json.dumps(made)))) == made


def test_a_file_cut_off_gives_what_it_holds_and_says_so(tmp_path: Path) -> None:
    made = steps(Shape(), 5)
    plain = made.text().encode()
    packed = gzip.compress(plain)
    uniform = random.Random(3).random
    for _ in range(40):
        for content in (plain, packed):
            cut = content[: int(len(content) * (0.2 + 0.75 * uniform()))]
            stream = EventStream(written(tmp_path, cut))
            got = list(stream)
            assert got == made.events[: len(got)]
            assert stream.truncated
    whole = read_timeline(written(tmp_path, plain), label)
    half = read_timeline(written(tmp_path, plain[: len(plain) // 2]), label)
    assert 0 < len(half.begin_us) < len(whole.begin_us)
    assert half.truncated


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "neither"),
        ("hello", "not a trace"),
        ('{"a": 1}', "no 'traceEvents'"),
        ('{"traceEvents": [1, 2]}', "where an event was expected"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k"}]}', "event 1"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "x"}]}', "event 1"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "args": 4}]}', "event 1"),
        ('{"traceEvents" 3}', "where a key was expected"),
    ],
)
def test_what_is_no_trace_is_refused_in_words(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(UsageFault, match=words):
        read_timeline(written(tmp_path, content), label)


def test_a_merged_trace_is_refused(tmp_path: Path) -> None:
    span = {"ph": "X", "cat": "user_annotation", "name": "draft", "pid": "[TP00] 12", "tid": 1, "ts": 1}
    with pytest.raises(UsageFault, match="ranks' own files"):
        read_timeline(written(tmp_path, json.dumps([span])), label)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="No such file"):
        list(EventStream(tmp_path / "none"))


def test_a_log_is_no_trace_and_a_trace_is_one(tmp_path: Path) -> None:
    assert is_trace(steps(Shape(), 2).write(tmp_path / "t.gz"))
    assert is_trace(written(tmp_path, "[\n {"))
    assert not is_trace(written(tmp_path, "[2026-11-29 10:00:00] server_args=ServerArgs(...)"))
    assert not is_trace(written(tmp_path, b""))
    assert not is_trace(written(tmp_path, b"\x1f\x8bnot gzip"))


def test_memory_stays_small_whatever_the_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 MB of frames that are of no interest around a few steps."""
    path = tmp_path / "large.json.gz"
    noise = ",\n".join(
        json.dumps({"ph": "X", "cat": "python_function", "name": f"module.py({i}): call", "ts": i, "dur": 1})
        for i in range(2000)
    )
    made = steps(Shape(), 5)
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write('{"traceEvents": [\n')
        for _ in range(25):
            file.write(noise + ",\n")
        file.write(",\n".join(map(json.dumps, made.events)) + "\n]}")
    monkeypatch.setattr(events, "_CHUNK", 1 << 16)
    # What is imported on first use is no part of it.
    read_timeline(made.write(tmp_path / "small.json.gz"), label)
    tracemalloc.start()
    try:
        found = read_timeline(path, label)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.events == 50_000 + len(made.events)
    assert peak < 2 << 20
