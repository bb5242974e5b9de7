"""Stands for NVML on PYTHONPATH: H200s on which the emulated servers of one test hold memory.

Read from the environment, so that every process of the test sees the same host:

- ``FAKE_GPUS``: their names.
- ``FAKE_HOST``: names the test; its servers are the schedulers that carry the same value.
- ``FAKE_NVML_PROCESSES``: how NVML lists them: ``named``; ``unsized`` (no memory told, as under MIG), ``host``
  (pids of another namespace, as in a container), ``unlisted`` (not permitted).
- ``FAKE_NVML_LOST``: a file; once it is there the GPUs have fallen off their bus.
- ``FAKE_NVML_MIG``: MIG is on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.host.fake_nvml import HEALTHY, FakeNvml, NVMLError, quiet_host

TOTAL_MIB = 143771
IDLE_MIB = 4
CONTEXT_MIB, WEIGHTS_MIB, DRAFT_MIB, KIB_A_TOKEN = 620, 2500, 480, 32


class _Host(FakeNvml):
    """The GPUs, and who is on them."""

    def __init__(self) -> None:
        names = os.environ.get("FAKE_GPUS", "NVIDIA H200").split(",")
        changes: dict[str, Any] = {"nvlinks": 18, "mig": int("FAKE_NVML_MIG" in os.environ)}
        super().__init__([{**HEALTHY, **changes, "name": name} for name in names])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        lost = os.environ.get("FAKE_NVML_LOST")
        if lost and Path(lost).exists():
            raise NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetMemoryInfo(self, index: int) -> Any:
        used = IDLE_MIB + sum(mib for _, mib in _servers(index))
        return SimpleNamespace(used=used << 20, total=TOTAL_MIB << 20)

    def nvmlDeviceGetComputeRunningProcesses(self, index: int) -> list[Any]:
        how = os.environ.get("FAKE_NVML_PROCESSES", "named")
        if how == "unlisted":
            raise NVMLError("Insufficient Permissions")
        return [
            SimpleNamespace(
                pid=pid + (4_000_000 if how == "host" else 0),
                usedGpuMemory=None if how == "unsized" else mib << 20,
            )
            for pid, mib in _servers(index)
        ]

    def nvmlDeviceGetUtilizationRates(self, index: int) -> Any:
        return SimpleNamespace(gpu=97 if any(_servers(index)) else 0)


def _servers(index: int) -> Iterator[tuple[int, int]]:
    """Schedulers on that GPU, and the MiB that each holds there."""
    mark = f"FAKE_HOST={os.environ.get('FAKE_HOST', '')}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            title = (folder / "cmdline").read_bytes()
            if not title.startswith(b"sglang::scheduler"):
                continue
            pairs = (folder / "environ").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            line = (Path("/proc") / str(parent) / "cmdline").read_bytes().decode()
        except OSError:
            continue
        if mark in pairs and _gpu_of(title, pairs) == index:
            yield int(folder.name), _mib(line.split("\0"))


def _gpu_of(title: bytes, pairs: list[bytes]) -> int:
    rank = re.match(rb"sglang::scheduler_TP(\d+)", title)
    place = int(rank[1]) if rank else 0
    value = next((p.partition(b"=")[2] for p in pairs if p.startswith(b"CUDA_VISIBLE_DEVICES=")), None)
    if value is None:
        return place
    return int(re.sub(r"GPU-(\d)0*", r"\1", value.decode()).split(",")[place])


def _mib(argv: list[str]) -> int:
    given = dict(pairwise(argv))
    tokens = given.get("--max-total-tokens")
    draft = DRAFT_MIB if "--speculative-algorithm" in given else 0
    if tokens:
        return CONTEXT_MIB + WEIGHTS_MIB + draft + int(tokens) * KIB_A_TOKEN // 1024
    return CONTEXT_MIB + int(TOTAL_MIB * float(given.get("--mem-fraction-static", "0.88")))


_CARDS = _Host()
quiet_host()


def nvmlInit() -> None:
    """Nothing is to be opened."""


def __getattr__(name: str) -> Any:
    return getattr(_CARDS, name)
