"""Finds the made CPU engine for tests that run it."""

from __future__ import annotations

import os

import pytest

from tokgate.config.engine import Engine, load_engine
from tokgate.environments import root

REQUIRE = "TOKGATE_REQUIRE_CPU_ENGINE"


def cpu_engine(name: str = "cpu") -> Engine:
    """The engine that ``tokgate env make NAME`` made.

    Where it is missing the test is skipped with that reason, or fails when TOKGATE_REQUIRE_CPU_ENGINE=1.
    """
    path = root() / name / "engine.yaml"
    if path.is_file():
        return load_engine(path)
    reason = f"no engine '{name}' in {root()}: make it with: tokgate env make {name}"
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(reason)
    pytest.skip(f"{reason} ({REQUIRE}=1 makes this a failure)")
