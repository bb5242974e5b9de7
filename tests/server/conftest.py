"""Launches of fake servers, and the check that nothing of a launch is left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tokgate.config.engine import Engine
from tokgate.config.gate import PhaseFloors
from tokgate.config.profiles import Profile
from tokgate.host import marker, ports
from tokgate.server.launch import LaunchSpec

FAKE = Path(__file__).with_name("fake_server.py")
FLOOR_S = 1.5
FLOORS = PhaseFloors(
    spawn_s=FLOOR_S * 2,
    imports_s=FLOOR_S,
    weights_s=FLOOR_S,
    kv_cache_s=FLOOR_S,
    capture_s=FLOOR_S,
    warmup_s=FLOOR_S,
    first_token_s=FLOOR_S,
)

SpecMaker = Callable[..., LaunchSpec]


@pytest.fixture
def fake_spec(tmp_path: Path) -> SpecMaker:
    """Makes a launch of the fake server; words are its options, ``spec`` changes the LaunchSpec."""

    def make(spec: dict[str, Any] | None = None, **options: str) -> LaunchSpec:
        port = ports.free_port()
        words = [f"{key}={value}" for key, value in options.items()]
        values: dict[str, Any] = {
            "profile": Profile(name="baseline"),
            "engine": Engine(name="fake", kind="emulated", version="0.5.15.post1"),
            "argv": (sys.executable, "-S", str(FAKE), str(port), *words),
            "env": {"NCCL_PROTO": "LL"},
            "host": "127.0.0.1",
            "port": port,
            "log_path": tmp_path / "logs" / "baseline.log",
            "forensics_dir": tmp_path / "forensics",
            "deadlines": FLOORS,
            "teardown_s": 2.0,
        }
        return LaunchSpec(**{**values, **(spec or {})})

    return make


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After each test no process of any launch made by this one lives."""
    yield
    owner = marker.owner_token()
    left = [
        item.process
        for item in marker.find_all()
        if f"{marker.OWNER}={owner}".encode() in marker.proc.environment_bytes(item.process.pid)
    ]
    for process in left:
        marker.kill("", [process])
    assert not left, f"still running: {left}"
