"""Hosts with GPUs that exist for NVML alone."""

from __future__ import annotations

import pytest

from tests.gpukind.hosts import GpuHost


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> GpuHost:
    """One H200; commands after each other."""
    return GpuHost(tmp_path_factory.mktemp("gpu"))


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> GpuHost:
    """Two H200."""
    return GpuHost(tmp_path_factory.mktemp("gpus"), 2)
