"""NVIDIA GPUs through NVML. A host without the driver is said to have none, with the reason.

NVML names processes by the host's pids: inside a container they may belong to nothing that is visible,
which is said, never guessed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tokgate.host import proc
from tokgate.host.gpu_facts import Gpu, GpuProcess

MIB = 1 << 20
T = TypeVar("T")
OPEN_S = 60.0
"""Longest wait for NVML: without persistence mode the first call wakes every GPU."""
# NVML_CLOCKS_EVENT_REASON_*: those that slow a GPU down, and those that do not.
THROTTLE: Mapping[int, str] = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
IDLE_REASONS: Mapping[int, str] = {
    0x1: "idle",
    0x2: "application clocks set",
    0x10: "sync boost",
    0x100: "display clocks set",
}


class Nvml:
    """An open NVML. Use :func:`open_nvml`.

    Args:
        library: the ``pynvml`` module, initialised.
    """

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self.count = int(library.nvmlDeviceGetCount())
        self.error: type[Exception] = library.NVMLError

    @property
    def driver(self) -> str | None:
        """Version of the kernel driver."""
        return _text(self._ask(self._nvml.nvmlSystemGetDriverVersion))

    @property
    def cuda(self) -> str | None:
        """Highest CUDA version that the driver serves."""
        version = self._ask(self._nvml.nvmlSystemGetCudaDriverVersion_v2)
        return None if version is None else f"{version // 1000}.{version % 1000 // 10}"

    def gpu(self, index: int) -> Gpu:
        """Everything about one GPU now.

        Raises:
            Nvml.error: the GPU does not answer at all.
        """
        nvml, ask = self._nvml, self._ask
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        reasons = ask(_first(nvml, "CurrentClocksEventReasons", "CurrentClocksThrottleReasons"), handle)
        utilisation = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        mig = ask(nvml.nvmlDeviceGetMigMode, handle)
        remap = ask(nvml.nvmlDeviceGetRemappedRows, handle)
        power = ask(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        persistence = ask(nvml.nvmlDeviceGetPersistenceMode, handle)
        return Gpu(
            index=index,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)) or "",
            name=_text(nvml.nvmlDeviceGetName(handle)) or "",
            memory_used_mib=int(memory.used) // MIB,
            memory_total_mib=int(memory.total) // MIB,
            processes=self.processes(index),
            sm_clock_mhz=ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            sm_clock_max_mhz=ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            throttle=None if reasons is None else throttle_reasons(reasons),
            utilisation_percent=None if utilisation is None else int(utilisation.gpu),
            temperature_c=ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            persistence=None if persistence is None else bool(persistence),
            mig=None if mig is None else bool(mig[0]),
            ecc_uncorrected=ask(
                nvml.nvmlDeviceGetTotalEccErrors,
                handle,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            remap_pending=None if remap is None else bool(remap[2]),
            pcie=self._pcie(handle),
        )

    def processes(self, index: int) -> tuple[GpuProcess, ...] | None:
        """Who holds memory on a GPU; ``None`` where NVML does not say."""
        raw = self._of(index, self._nvml.nvmlDeviceGetComputeRunningProcesses)
        if raw is None:
            return None
        return tuple(
            GpuProcess(
                int(item.pid),
                None if item.usedGpuMemory is None else int(item.usedGpuMemory) // MIB,
                _process_name(int(item.pid)),
            )
            for item in raw
        )

    def used_mib(self, indices: Sequence[int]) -> dict[int, int]:
        """Device memory in use, by GPU index; a GPU that does not answer is left out."""
        memory = {i: self._of(i, self._nvml.nvmlDeviceGetMemoryInfo) for i in indices}
        return {index: int(found.used) // MIB for index, found in memory.items() if found is not None}

    def busy_percent(self, index: int) -> int | None:
        """Percent of the last tenths of a second in which a kernel ran; ``None`` where NVML does not say."""
        used = self._of(index, self._nvml.nvmlDeviceGetUtilizationRates)
        return None if used is None else int(used.gpu)

    def permitted(self) -> list[int]:
        """Indices of the GPUs that this process may use; one that does not answer for another reason is among them."""
        refused = self._nvml.NVMLError_NoPermission
        return [index for index in range(self.count) if not isinstance(self.silence(index), refused)]

    def silence(self, index: int) -> Exception | None:
        """Why a GPU does not answer; ``None`` when it does."""
        try:
            self._nvml.nvmlDeviceGetUUID(self._nvml.nvmlDeviceGetHandleByIndex(index))
        except self.error as error:
            return error
        return None

    def uuids(self) -> list[str]:
        """UUIDs in the order of the indices; empty for a GPU that does not answer."""
        return [_text(self._of(index, self._nvml.nvmlDeviceGetUUID)) or "" for index in range(self.count)]

    def names(self, indices: Sequence[int]) -> list[str]:
        """Names of GPUs; ``unknown`` for one that does not answer. One with MIG on is a part of a GPU to an engine, and
        has ``MIG`` behind its name."""
        found = []
        for index in indices:
            name = _text(self._of(index, self._nvml.nvmlDeviceGetName)) or "unknown"
            mig = self._of(index, self._nvml.nvmlDeviceGetMigMode)
            found.append(f"{name} MIG" if mig is not None and mig[0] else name)
        return found

    def throttle_s(self, indices: Sequence[int]) -> dict[tuple[int, str], float]:
        """Time for which power or heat slowed a GPU down since boot, by index and cause, seconds."""
        nvml = self._nvml
        policies = {"power": nvml.NVML_PERF_POLICY_POWER, "thermal": nvml.NVML_PERF_POLICY_THERMAL}
        found = {}
        for index in indices:
            for cause, policy in policies.items():
                status = self._of(index, nvml.nvmlDeviceGetViolationStatus, policy)
                if status is not None:
                    found[index, cause] = status.violationTime / 1e9
        return found

    def link(self, first: int, second: int) -> str:
        """How two GPUs are joined: ``NVLink x18``, or the nearest common ancestor on PCIe."""
        nvml, ask = self._nvml, self._ask
        one, two = (ask(nvml.nvmlDeviceGetHandleByIndex, index) for index in (first, second))
        if one is None or two is None:
            return "unknown"
        lanes = sum(bool(ask(nvml.nvmlDeviceGetNvLinkState, one, link)) for link in range(18))
        if lanes and ask(nvml.nvmlDeviceGetP2PStatus, one, two, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0:
            return f"NVLink x{lanes}"
        ancestor = ask(nvml.nvmlDeviceGetTopologyCommonAncestor, one, two)
        names = {0: "same board", 10: "PCIe switch", 20: "PCIe switches", 30: "PCIe host bridge"}
        return names.get(ancestor, {40: "NUMA node", 50: "across NUMA nodes"}.get(ancestor, "unknown"))

    def _pcie(self, handle: Any) -> str | None:
        nvml, ask = self._nvml, self._ask
        generation = ask(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle)
        width = ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle)
        if generation is None or width is None:
            return None
        best = ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
        widest = ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
        return f"gen{generation} x{width} (max gen{best} x{widest})"

    def _of(self, index: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a GPU answers; ``None`` where it does not."""
        handle = self._ask(self._nvml.nvmlDeviceGetHandleByIndex, index)
        return None if handle is None else self._ask(function, handle, *arguments)

    def _ask(self, function: Callable[..., Any] | None, *arguments: Any) -> Any:
        if function is None:
            return None
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


class Broken(str):
    """Why NVML does not answer on a host that has a driver: the host is to be mended, not one without a GPU."""


def open_nvml() -> Nvml | str:
    """NVML, or one line that says why this host shows no GPU; :class:`Broken` where it has a driver."""
    try:
        import pynvml
    except ImportError:
        return "nvidia-ml-py is not installed"
    none = (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded)

    def opened() -> Nvml | str:
        try:
            pynvml.nvmlInit()
            nvml = Nvml(pynvml)
            # A GPU that hangs is found here, and not by whoever asks first.
            nvml.permitted()
            return nvml
        except none as error:
            return f"no NVIDIA driver answers: {error}"
        except pynvml.NVMLError as error:
            return Broken(f"its NVIDIA driver does not answer: {error}")

    silent: Nvml | str = Broken(f"NVML gave no answer within {OPEN_S:g} s: a GPU or its driver hangs")
    return within(OPEN_S, opened, silent)


def within(seconds: float, function: Callable[[], T], default: T) -> T:
    """What a function gives, or ``default`` when it takes longer: a GPU that fell off its bus holds NVML.

    The thread that is held stays behind; it is a daemon.

    Raises:
        Exception: whatever the function raises, here and not in the thread, where nobody would see it.
    """
    found: list[T] = []
    raised: list[Exception] = []

    def ask() -> None:
        try:
            found.append(function())
        except Exception as error:  # noqa: BLE001 - handed on, whatever it is
            raised.append(error)

    thread = threading.Thread(target=ask, name="tokgate-nvml", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    return found[0] if found else default


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """Names of the bits that slow a GPU down; unknown bits are named by number."""
    known = {**THROTTLE, **IDLE_REASONS}
    unknown = [f"reason 0x{1 << bit:x}" for bit in range(64) if mask >> bit & 1 and 1 << bit not in known]
    return (*(name for bit, name in THROTTLE.items() if mask & bit), *unknown)


def _process_name(pid: int) -> str:
    process = proc.read(pid)
    return proc.title(process) if process else "not visible from here: another user's, or another container's"


def _first(library: Any, *names: str) -> Callable[..., Any] | None:
    return next((f for name in names if (f := getattr(library, f"nvmlDeviceGet{name}", None))), None)


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
