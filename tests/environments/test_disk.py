"""The bound on the disk of environments: the least recently used go, none that is in use."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.environments.made import silent
from tokgate.config.engine import load_engine
from tokgate.environments import shelf
from tokgate.environments.engine import make
from tokgate.environments.wanted import parse
from tokgate.errors import HostFault

pytestmark = pytest.mark.usefixtures("offline")


def aged(root: Path, name: str, days: float) -> None:
    then = time.time() - days * 86400
    os.utime(root / name / "used", (then, then))


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Two engines of which 0.5.15 was used last, and a wheel that was."""
    for name in ("sglang==0.5.13", "sglang==0.5.15"):
        make(parse(name), tmp_path, silent)
    aged(tmp_path, "sglang-0.5.13", 9)
    aged(tmp_path, "sglang-0.5.15", 2)
    return tmp_path


def test_least_recently_used_goes_first(three: Path) -> None:
    sizes = {item.name: item.disk_bytes for item in shelf.kept(three)}
    assert list(sizes) == ["sglang-0.5.15", "sglang-0.5.13"]
    said: list[str] = []
    shelf.bound(three, sum(sizes.values()) / 2**30, "", said.append)
    assert said == [] and len(shelf.kept(three)) == 2
    shelf.bound(three, (sum(sizes.values()) - 1) / 2**30, "", said.append)
    assert [item.name for item in shelf.kept(three)] == ["sglang-0.5.15"]
    assert said[0].startswith("removed sglang-0.5.13, the least recently used: ")


def test_the_one_just_made_stays_and_the_broken_bound_is_told(three: Path) -> None:
    said: list[str] = []
    shelf.bound(three, 0, "sglang-0.5.13", said.append)
    assert [item.name for item in shelf.kept(three)] == ["sglang-0.5.13"]
    assert "are left, more than --keep-gib 0" in said[-1]


def test_one_in_use_is_not_removed(three: Path) -> None:
    engine = load_engine(three / "sglang-0.5.13" / "engine.yaml")
    running = subprocess.Popen([engine.python, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        said: list[str] = []
        shelf.bound(three, 0, "", said.append)
        assert [item.name for item in shelf.kept(three)] == ["sglang-0.5.13"]
        assert f"kept sglang-0.5.13: in use by pid {running.pid} (" in "\n".join(said)
        with pytest.raises(HostFault, match="is in use by pid"):
            shelf.remove("sglang-0.5.13", three, silent)
    finally:
        running.communicate(b"\n")
    shelf.remove("sglang-0.5.13", three, silent)
    assert shelf.kept(three) == []
