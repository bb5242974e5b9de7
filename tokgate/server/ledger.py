"""GPU memory of one launch: what it holds, and what it left, beside whatever else runs on the GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tokgate.host import gpu

_NVML_S = 5.0


@dataclass(frozen=True, slots=True)
class Held:
    """Device memory at one moment, MiB by GPU index.

    Attributes:
        total_mib: in use, by whomever.
        own_mib: of the launch's processes; ``None`` while NVML has never named one of them (in some
            containers it names pids of the host, which are nobody's here).
        shared: another process is on one of the GPUs.
    """

    total_mib: Mapping[int, int]
    own_mib: Mapping[int, int] | None
    shared: bool

    @property
    def gauge(self) -> tuple[str, int]:
        """Name and value of the gauge of progress: once it is known which memory is ours, that alone."""
        if self.own_mib is not None:
            return "own_gpu_mib", sum(self.own_mib.values())
        return "gpu_mib", sum(self.total_mib.values())


class GpuLedger:
    """Device memory before a launch, during it and after.

    On a GPU of its own a launch is what was added to the memory in use. Beside other servers that tells
    nothing, and NVML's list of processes does.

    Args:
        before_mib: in use before the launch, MiB by GPU index; ``None`` where there is no NVML.
    """

    def __init__(self, before_mib: Mapping[int, int] | None) -> None:
        self._before_mib = before_mib
        self._was_named = False

    @classmethod
    def open(cls, kind: str, env: Mapping[str, str], count: int) -> GpuLedger:
        """Read the GPUs that an engine of that kind and environment will use."""
        if kind != "gpu":
            return cls(None)

        def used() -> dict[int, int] | None:
            nvml = gpu.open_nvml()
            if isinstance(nvml, str):
                return None
            return nvml.used_mib(gpu.visible_indices(nvml, env, count))

        return cls(gpu.within(_NVML_S, used, None))

    def held(self, pids: Collection[int]) -> Held | None:
        """What is held now; ``None`` without NVML. One that once gave no answer in time is not asked again.

        Args:
            pids: of the launch, dead ones included.
        """
        if self._before_mib is None:
            return None
        indices, ours = list(self._before_mib), set(pids)

        def read() -> tuple[dict[int, int], dict[int, dict[int, int]]] | None:
            nvml = gpu.open_nvml()
            if isinstance(nvml, str):
                return None
            listed = {i: {p.pid: p.mib or 0 for p in nvml.processes(i) or ()} for i in indices}
            return nvml.used_mib(indices), listed

        found = gpu.within(_NVML_S, read, None)
        if found is None:
            self._before_mib = None
            return None
        total, listed = found
        named = {pid for processes in listed.values() for pid in processes}
        self._was_named = self._was_named or bool(named & ours)
        own = {i: sum(mib for pid, mib in listed[i].items() if pid in ours) for i in indices}
        return Held(total, own if self._was_named else None, bool(named - ours))

    def left_mib(self, held: Held | None) -> dict[int, int] | None:
        """What a launch that has ended still holds, MiB by index; ``None`` where it is not known."""
        if held is None or self._before_mib is None:
            return None
        if held.shared and held.own_mib is not None:
            return dict(held.own_mib)
        before = self._before_mib
        return {i: max(0, used - before[i]) for i, used in held.total_mib.items() if i in before}


def given_back_mib(before: Held | None, now: Held | None) -> dict[int, int] | None:
    """What a teardown gave back, MiB by index."""
    if before is None or now is None:
        return None
    if before.own_mib is not None and now.own_mib is not None:
        first, last = before.own_mib, now.own_mib
    else:
        first, last = before.total_mib, now.total_mib
    return {i: max(0, first[i] - last[i]) for i in last if i in first}
