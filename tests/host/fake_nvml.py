"""An NVML of a few GPUs that exists only in the tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tokgate.host import contention
from tokgate.host.gpu import Nvml

GIB = 1 << 30


class NVMLError(Exception):
    """As pynvml's."""


class NVMLError_NoPermission(NVMLError):
    """As pynvml's."""


class NVMLError_LibraryNotFound(NVMLError):
    """As pynvml's."""


class NVMLError_DriverNotLoaded(NVMLError):
    """As pynvml's."""


class FakeNvml:
    """Stands for the ``pynvml`` module. ``cards`` are dictionaries; a missing key is 'not supported'."""

    NVMLError = NVMLError
    NVMLError_NoPermission = NVMLError_NoPermission
    NVMLError_LibraryNotFound = NVMLError_LibraryNotFound
    NVMLError_DriverNotLoaded = NVMLError_DriverNotLoaded
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_PERF_POLICY_POWER = 0
    NVML_PERF_POLICY_THERMAL = 1

    def __init__(self, cards: list[dict[str, Any]], links: dict[tuple[int, int], int] | None = None) -> None:
        self.cards = cards
        self.links = links or {}

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if fault := self.cards[index].get("fault"):
            raise fault
        return index

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13000

    def nvmlDeviceGetMemoryInfo(self, index: int) -> Any:
        card = self.cards[index]
        return SimpleNamespace(used=card["used_mib"] << 20, total=143 * GIB)

    def nvmlDeviceGetUUID(self, index: int) -> bytes:
        return f"GPU-{index}000".encode()

    def nvmlDeviceGetName(self, index: int) -> str:
        return str(self.cards[index].get("name", "NVIDIA H200"))

    def nvmlDeviceGetComputeRunningProcesses(self, index: int) -> list[Any]:
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib << 20)
            for pid, mib in self._get(index, "processes")
        ]

    def nvmlDeviceGetUtilizationRates(self, index: int) -> Any:
        return SimpleNamespace(gpu=self._get(index, "utilisation"))

    def nvmlDeviceGetMigMode(self, index: int) -> tuple[int, int]:
        return self._get(index, "mig"), 0

    def nvmlDeviceGetRemappedRows(self, index: int) -> tuple[int, int, int, int]:
        return 0, 0, self._get(index, "remap_pending"), 0

    def nvmlDeviceGetViolationStatus(self, index: int, policy: int) -> Any:
        return SimpleNamespace(violationTime=self._get(index, "violation_ns")[policy])

    def nvmlDeviceGetNvLinkState(self, index: int, link: int) -> int:
        return int(link < self._get(index, "nvlinks"))

    def nvmlDeviceGetP2PStatus(self, first: int, second: int, cap: int) -> int:
        return 0

    def nvmlDeviceGetTopologyCommonAncestor(self, first: int, second: int) -> int:
        return self.links.get((first, second), 10)

    def nvmlDeviceGetTotalEccErrors(self, index: int, kind: int, counter: int) -> int:
        return int(self._get(index, "ecc"))

    def nvmlDeviceGetClockInfo(self, index: int, clock: int) -> int:
        return int(self._get(index, "clock"))

    def nvmlDeviceGetMaxClockInfo(self, index: int, clock: int) -> int:
        return 1980

    def nvmlDeviceGetTemperature(self, index: int, sensor: int) -> int:
        return 41

    def __getattr__(self, name: str) -> Callable[[int], Any]:
        keys = {
            "nvmlDeviceGetCurrentClocksEventReasons": "reasons",
            "nvmlDeviceGetPowerUsage": "power_mw",
            "nvmlDeviceGetEnforcedPowerLimit": "limit_mw",
            "nvmlDeviceGetPersistenceMode": "persistence",
            "nvmlDeviceGetCurrPcieLinkGeneration": "gen",
            "nvmlDeviceGetMaxPcieLinkGeneration": "gen_max",
            "nvmlDeviceGetCurrPcieLinkWidth": "width",
            "nvmlDeviceGetMaxPcieLinkWidth": "width_max",
        }
        if name not in keys:
            raise AttributeError(name)
        return lambda index: self._get(index, keys[name])

    def _get(self, index: int, key: str) -> Any:
        if key not in self.cards[index]:
            raise NVMLError("Not Supported")
        return self.cards[index][key]


HEALTHY: dict[str, Any] = {
    "used_mib": 4,
    "processes": [],
    "utilisation": 0,
    "mig": 0,
    "remap_pending": 0,
    "violation_ns": (0, 0),
    "nvlinks": 0,
    "ecc": 0,
    "clock": 1980,
    "reasons": 0x1,
    "power_mw": 75_000,
    "limit_mw": 700_000,
    "persistence": 1,
    "gen": 5,
    "gen_max": 5,
    "width": 16,
    "width_max": 16,
}


def quiet_host() -> None:
    """Let the host that these GPUs are in be idle: gates on a GPU refuse a host from which CPU time is stolen, as it
    may be from the one that runs the tests."""
    contention.steal_s = lambda: 0.0
    os.getloadavg = lambda: (0.0, 0.0, 0.0)


def nvml_of(*changes: dict[str, Any], links: dict[tuple[int, int], int] | None = None) -> Nvml:
    """An open NVML: one dictionary of changes against a healthy GPU for each GPU."""
    cards = [
        {key: value for key, value in {**HEALTHY, **card}.items() if value is not None} for card in changes
    ]
    return Nvml(FakeNvml(cards, links))
