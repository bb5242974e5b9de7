"""Stands for PyTorch in the engine's Python: a copy of 1 GiB, ten times over, takes 5 ms (4.3 TB/s)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

float32 = "float32"


class _Event:
    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        """Nothing runs."""

    def elapsed_time(self, other: _Event) -> float:
        return 5.0


cuda = SimpleNamespace(Event=_Event, synchronize=lambda: None)


def ones(size: int, *, dtype: str, device: str) -> Any:
    assert device == "cuda", "a GPU engine's memory is the GPU's"
    return SimpleNamespace(copy_=lambda source: None)


def empty_like(other: Any) -> Any:
    return other
