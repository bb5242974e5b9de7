"""What is known of one GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory on a GPU; ``mib`` is ``None`` where NVML does not say."""

    pid: int
    mib: int | None
    name: str

    @property
    def size(self) -> str:
        """``mib`` in words."""
        return "MiB not known" if self.mib is None else f"{self.mib} MiB"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment. What NVML does not report is ``None``.

    Attributes:
        index: NVML's, in PCI order.
        memory_used_mib, memory_total_mib: device memory.
        sm_clock_mhz, sm_clock_max_mhz: now, and the most it can.
        throttle: reasons that slow it down now.
        utilisation_percent: share of the last sample period with a kernel running.
        ecc_uncorrected: since the driver was loaded.
        pcie: ``gen5 x16 (max gen5 x16)``.
    """

    index: int
    uuid: str
    name: str
    memory_used_mib: int
    memory_total_mib: int
    processes: tuple[GpuProcess, ...] | None
    sm_clock_mhz: int | None
    sm_clock_max_mhz: int | None
    throttle: tuple[str, ...] | None
    utilisation_percent: int | None
    temperature_c: int | None
    power_w: float | None
    power_limit_w: float | None
    persistence: bool | None
    mig: bool | None
    ecc_uncorrected: int | None
    remap_pending: bool | None
    pcie: str | None
