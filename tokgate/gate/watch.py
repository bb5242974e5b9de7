"""Watch: what the host, the GPUs included, does beside a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tokgate.gate.setup import Setup
from tokgate.host import gpu
from tokgate.host.contention import Snapshot, snapshot

NVML_S = 5.0
"""Longest wait for an answer of NVML."""


class Watch:
    """Takes snapshots of the counters that void a run.

    Args:
        setup: of the run; GPUs are watched on a GPU engine alone.
        beside: processes of other servers that the gate keeps up: they are not foreign on a GPU.
    """

    def __init__(self, setup: Setup, beside: Callable[[], Iterable[int]]) -> None:
        self._beside = beside
        self._gpus = _open(setup)

    def snapshot(self, pids: Sequence[int]) -> Snapshot:
        """Counters now. An NVML that once gave no answer in time is not asked again.

        Args:
            pids: processes of the measured server.
        """
        if self._gpus is not None:
            nvml, indices = self._gpus
            beside = list(self._beside())
            found = gpu.within(NVML_S, lambda: snapshot(pids, nvml, indices, beside), None)
            if found is not None:
                return found
            self._gpus = None
        return snapshot(pids)


def _open(setup: Setup) -> tuple[gpu.Nvml, list[int]] | None:
    """NVML and the GPUs that this engine's profiles use; ``None`` where there are none to be watched."""
    if setup.engine.kind != "gpu":
        return None
    nvml = gpu.open_nvml()
    if isinstance(nvml, str):
        return None
    return nvml, gpu.visible_indices(nvml, setup.engine.env, setup.ranks)
