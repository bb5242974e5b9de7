"""Launches of the fake server and of the emulated engine, golden messages, and the check that nothing of
a launch is left."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden import compare
from tests.server.launches import Golden, Lateness, SpecMaker, spec_of, spec_of_fake
from tokgate.config.engine import emulated_engine
from tokgate.config.profiles import Profile, Speculation
from tokgate.errors import TokgateError
from tokgate.host import marker, ports, proc
from tokgate.server.launch import LaunchSpec
from tokgate.sglang.flags import server_arguments

MESSAGES = Path(__file__).parents[1] / "messages" / "server"


@pytest.fixture
def fake_spec(tmp_path: Path) -> SpecMaker:
    """Makes a launch of the fake server; words are its options, ``changes`` those of the LaunchSpec."""

    def make(changes: dict[str, Any] | None = None, **options: str) -> LaunchSpec:
        return spec_of_fake(tmp_path, changes, **options)

    return make


@pytest.fixture
def emulated_spec(tmp_path: Path) -> SpecMaker:
    """Makes a launch of the emulated engine with EAGLE-3, ``tp`` ranks and the given faults."""

    def make(*faults: str, tp: int = 1, **changes: Any) -> LaunchSpec:
        engine, port = emulated_engine(), ports.free_port()
        profile = Profile(
            name="eagle3-graphs",
            tp=tp,
            attention_backend="triton",
            speculation=Speculation(steps=3, topk=1, draft_tokens=4),
        )
        arguments = server_arguments(
            profile,
            version=engine.version,
            kind="emulated",
            target="emulated",
            draft="emulated-draft",
            host="127.0.0.1",
            port=port,
        )
        argv = [engine.python, *engine.launcher, *arguments.argv, "--scenario", "founding"]
        for fault in faults:
            argv += ["--fault", fault]
        return spec_of(
            tmp_path,
            {
                "profile": profile,
                "engine": engine,
                "port": port,
                "argv": tuple(argv),
                "env": arguments.env,
                **changes,
            },
        )

    return make


@pytest.fixture
def golden(tmp_path: Path) -> Golden:
    """Compares an error's message with the recorded one, figures and paths normalised."""

    def held(name: str, error: TokgateError) -> None:
        text = _normal(f"{type(error).__name__}: {error}", tmp_path) + "\n"
        files = [_normal(path.name, tmp_path) for path in getattr(error, "files", ())]
        compare(MESSAGES / f"{name}.txt", text + "".join(f"file: {name}\n" for name in files))

    return held


_NORMAL: tuple[tuple[str, str], ...] = (
    (r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( TP\d)?\]", "[TIME]"),
    (r"^this host was starved: .*\n", ""),
    (r"^before it: .*", "before it: PHASES"),
    (r"(stack of .*?|other ranks): .*", r"\1: FRAMES"),
    (r": (sleeping|running|in uninterruptible sleep)(, \d+ MiB resident)", r": STATE\2"),
    (r'File ".*?([^/"]+)", line \d+', r'File "\1", line N'),
    (r"\.\.\. \d+ lines \.\.\.", "... N lines ..."),
    (r"avail mem=[\d.]+|avail_mem=[\d.]+", "avail_mem=N"),
    (r"\d+%\|[^|]*\| .*", "PROGRESS"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"input throughput \(token/s\): [\d.]+", "input throughput (token/s): N"),
    (r"\b(pid|process|of) \d+", r"\1 PID"),
    (r"port \d+", "port PORT"),
    # Whether a status can still be read depends on how soon the parent collects it.
    (r"is gone, status not known|killed by SIGABRT|(?<=detokenizer \(pid PID\) )exit code \d+", "DIED"),
    (r"\b\d+ MiB resident", "N MiB resident"),
    (r"after [\d.]+ s\b", "after N s"),
    (r"progress for [\d.]+ s\b", "progress for N s"),
    (r"-[0-9a-f]{8}-", "-MARK-"),
    (r"rid='[0-9a-f]+'", "rid=RID"),
    (r"\b\d+\.log", "PORT.log"),
    (r"\(python[\d.]*\)|\bpython[\d.]*:", "PYTHON"),
)


def _normal(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "TMP").replace(sys.executable, "PYTHON")
    for pattern, word in _NORMAL:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return text


@pytest.fixture
def lateness() -> Iterator[Lateness]:
    """Measured while the test runs."""
    found = Lateness()
    yield found
    found.end()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After each test no process of any launch made by this process lives."""
    yield
    owner = f"{marker.OWNER}={marker.owner_token()}".encode()
    left = {
        item.process: proc.title(item.process)
        for item in marker.find_all()
        if owner in proc.environment_bytes(item.process.pid)
    }
    marker.kill("", left)
    assert not left, f"still running: {left}"
