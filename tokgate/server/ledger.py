"""GPU memory of one launch: what it holds, and what it left, beside whatever else runs on the GPUs."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from weakref import WeakSet

from tokgate.host import gpu
from tokgate.host.gpu_facts import GpuProcess
from tokgate.host.visible import visible_indices

_NVML_S = 5.0


@dataclass(frozen=True, slots=True)
class Held:
    """Device memory at one moment, MiB by GPU index.

    Attributes:
        total_mib: in use, by whomever.
        own_mib: of the launch's processes; ``None`` while NVML has never named one of them (in some
            containers it names pids of the host, which are nobody's here), and where it does not tell what
            they hold.
        shared: another process is on one of the GPUs.
        crowded: another launch of ours has been on one of them meanwhile.
    """

    total_mib: Mapping[int, int]
    own_mib: Mapping[int, int] | None
    shared: bool
    crowded: bool = False

    @property
    def gauge(self) -> tuple[str, int] | None:
        """Name and value of the gauge of progress: once it is known which memory is ours, that alone; ``None`` where
        what is in use may be another launch's."""
        if self.own_mib is not None:
            return "own_gpu_mib", sum(self.own_mib.values())
        return None if self.crowded else ("gpu_mib", sum(self.total_mib.values()))


class GpuLedger:
    """Device memory before a launch, during it and after.

    On a GPU of its own a launch is what was added to the memory in use. Beside other servers that tells
    nothing, and NVML's list of processes does; where it does not either, nothing is known. Servers that tokgate
    starts beside each other know of each other by :meth:`begin` and :meth:`end`.

    Args:
        before_mib: in use before the launch, MiB by GPU index; ``None`` where there is no NVML.
    """

    _open: ClassVar[WeakSet[GpuLedger]] = WeakSet()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, before_mib: Mapping[int, int] | None) -> None:
        self._before_mib = before_mib
        self._was_named = False
        self._crowded = False

    @classmethod
    def open(cls, kind: str, env: Mapping[str, str], count: int) -> GpuLedger:
        """Read the GPUs that an engine of that kind and environment will use."""
        if kind != "gpu":
            return cls(None)

        def used() -> dict[int, int] | None:
            nvml = gpu.open_nvml()
            if isinstance(nvml, str):
                return None
            return nvml.used_mib(visible_indices(nvml, env, count))

        return cls(gpu.within(_NVML_S, used, None))

    def begin(self) -> None:
        """A launch begins: it and those that have not ended know of each other from here on."""
        gpus = set(self._before_mib or ())
        with self._lock:
            for other in self._open:
                if gpus & set(other._before_mib or ()):
                    self._crowded = other._crowded = True
            self._open.add(self)

    def end(self) -> None:
        """The launch has ended. Idempotent."""
        with self._lock:
            self._open.discard(self)

    def held(self, pids: Collection[int]) -> Held | None:
        """What is held now; ``None`` without NVML. One that once gave no answer in time is not asked again.

        Args:
            pids: of the launch, dead ones included.
        """
        if self._before_mib is None:
            return None
        indices, ours = list(self._before_mib), set(pids)

        def read() -> tuple[dict[int, int], list[tuple[GpuProcess, ...] | None]] | None:
            nvml = gpu.open_nvml()
            if isinstance(nvml, str):
                return None
            return nvml.used_mib(indices), [nvml.processes(index) for index in indices]

        found = gpu.within(_NVML_S, read, None)
        if found is None:
            self._before_mib = None
            return None
        total, listed = found
        named = {process.pid for processes in listed for process in processes or ()}
        self._was_named = self._was_named or bool(named & ours)
        own = {index: _held_by(ours, processes) for index, processes in zip(indices, listed, strict=True)}
        told = {index: mib for index, mib in own.items() if mib is not None}
        return Held(
            total,
            told if self._was_named and len(told) == len(own) else None,
            bool(named - ours),
            self._crowded,
        )

    def left_mib(self, held: Held | None) -> dict[int, int] | None:
        """What a launch that has ended still holds, MiB by index; ``None`` where it is not known."""
        if held is None or self._before_mib is None:
            return None
        if held.own_mib is not None and (held.shared or held.crowded):
            return dict(held.own_mib)
        if held.crowded:
            return None
        before = self._before_mib
        return {i: max(0, used - before[i]) for i, used in held.total_mib.items() if i in before}

    def lost(self, held: Held | None) -> tuple[int, ...]:
        """GPUs that answered before the launch and did not at that moment."""
        if held is None:
            return ()
        return tuple(index for index in self._before_mib or () if index not in held.total_mib)


def given_back_mib(before: Held | None, now: Held | None) -> dict[int, int] | None:
    """What a teardown gave back, MiB by index; ``None`` where it is not known."""
    if before is None or now is None:
        return None
    if before.own_mib is not None and now.own_mib is not None:
        first, last = before.own_mib, now.own_mib
    elif now.crowded:
        return None
    else:
        first, last = before.total_mib, now.total_mib
    return {i: max(0, first[i] - last[i]) for i in last if i in first}


def _held_by(pids: Collection[int], processes: Sequence[GpuProcess] | None) -> int | None:
    """MiB that processes hold on a GPU; ``None`` where NVML lists nobody, or not what one of them holds."""
    if processes is None:
        return None
    sizes = [process.mib for process in processes if process.pid in pids]
    told = [mib for mib in sizes if mib is not None]
    return sum(told) if len(told) == len(sizes) else None
