"""Stands for NVML on PYTHONPATH: a host with the GPUs that ``FAKE_GPUS`` names, none of them in use."""

from __future__ import annotations

import os
from typing import Any

from tests.host.fake_nvml import HEALTHY, FakeNvml, quiet_host

_NAMES = os.environ.get("FAKE_GPUS", "NVIDIA H200,NVIDIA H200").split(",")
_CARDS = FakeNvml([{**HEALTHY, "name": name, "nvlinks": 18} for name in _NAMES])
quiet_host()


def nvmlInit() -> None:
    """Nothing is to be opened."""


def __getattr__(name: str) -> Any:
    return getattr(_CARDS, name)
