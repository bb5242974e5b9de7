"""Shared by the tests of the SGLang knowledge: the recorded real output and option lists."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def samples_folder() -> Path:
    """Real SGLang output, copied unchanged into the repository's test data."""
    return HERE / "samples"


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of real SGLang output: one folder a version."""
    return samples_folder()
