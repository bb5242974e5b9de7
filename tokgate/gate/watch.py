"""Watch: what the host, the GPUs included, does beside a run; and the memory that a server took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from tokgate.analysis.voids import GPU_CAUSES, unwatched
from tokgate.gate.setup import Setup
from tokgate.host import gpu
from tokgate.host.canary import Canary
from tokgate.host.contention import Snapshot, difference, snapshot
from tokgate.host.proc import Process, title
from tokgate.host.visible import visible_indices
from tokgate.load.sample import Sample
from tokgate.server.running import Server

NVML_S = 5.0
"""Longest wait for an answer of NVML."""

SCHEDULER = "scheduler"
"""In the title that SGLang gives the processes that drive a GPU: ``sglang::scheduler_TP0``."""


class Watch:
    """Takes snapshots of the counters that void a run.

    Args:
        setup: of the run; GPUs are watched on a GPU engine alone.
        beside: processes of other servers that the gate keeps up: they are not foreign on a GPU.
    """

    def __init__(self, setup: Setup, beside: Callable[[], Iterable[int]]) -> None:
        self._beside = beside
        self._gpus = _open(setup)
        self._canary: Canary | None = None

    @contextmanager
    def during(self, processes: Sequence[Process]) -> Iterator[dict[str, float]]:
        """Counters of what happens while the body runs: there when it has ended without a fault.

        Args:
            processes: of the measured server.
        """
        pids = [process.pid for process in processes]
        schedulers = [process.pid for process in processes if SCHEDULER in title(process)]
        found: dict[str, float] = {}
        with self._canary_on(schedulers) as seen:
            before = self.snapshot(pids)
            yield found
            found |= difference(before, self.snapshot(pids))
        found |= seen

    @contextmanager
    def _canary_on(self, schedulers: Sequence[int]) -> Iterator[dict[str, float]]:
        """See :meth:`tokgate.host.canary.Canary.watch`; nothing where there is no GPU, whose waiting tells whether a
        slow CPU matters, or no scheduler."""
        if self._gpus is None or not schedulers:
            yield {}
            return
        if self._canary is None:
            self._canary = Canary()
        with self._canary.watch(schedulers, self._gpus[1]) as seen:
            yield seen

    def close(self) -> None:
        """End the canary's process."""
        if self._canary is not None:
            self._canary.close()

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


class Blind:
    """Counts what could not have been seen: a run is not cleared of a cause that nobody looked for.

    Args:
        kind: of the engine; one without a GPU is not blind for what a GPU does.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._runs = 0
        self._causes: Counter[str] = Counter()

    def add(self, sample: Sample) -> None:
        """One measured run."""
        self._runs += 1
        self._causes.update(c for c in unwatched(sample) if self._kind == "gpu" or c not in GPU_CAUSES)

    def remarks(self) -> list[str]:
        """One line for each cause that some run could not have been void by."""
        return [
            f"{cause}: not watched in {count} of {self._runs} runs (no counter of it was read), so none of these is "
            "cleared of it"
            for cause, count in sorted(self._causes.items())
        ]


def memory(server: Server, *, alone: bool) -> dict[str, float]:
    """Memory of a server that is ready; what is not told is left out.

    Args:
        alone: whether nothing else started on its GPUs meanwhile. The log gives a capture's memory as what became
            less on the whole GPU, so that beside others it is anybody's; and the pool of a server without a bound in
            tokens is what those that start beside it leave, another one at each start
            (docs/decisions/start-together.md).

    Returns:
        ``gpu_memory_mib`` (of its fullest GPU), ``graphs_gb`` (all captures of the rank with most) and
        ``kv_cache_tokens`` (room of the KV cache: what weights and graphs left of its share of the GPU).
    """
    found: dict[str, float] = {}
    own_pool = alone or server.profile.max_total_tokens is not None
    held = server.gpu_memory_mib() if own_pool else None
    if held:
        found["gpu_memory_mib"] = float(max(held.values()))
    graphs: dict[str, list[float | None]] = {}
    for capture in server.captures if alone else ():
        graphs.setdefault(capture.rank, []).append(capture.gb)
    told = [[gb for gb in each if gb is not None] for each in graphs.values()]
    # The sum of some captures would pass for less memory than all of them take.
    if told and [len(each) for each in told] == [len(each) for each in graphs.values()]:
        found["graphs_gb"] = max(map(sum, told))
    room = server.server_info.get("max_total_num_tokens")
    if own_pool and isinstance(room, int) and room > 0:
        found["kv_cache_tokens"] = float(room)
    return found


def _open(setup: Setup) -> tuple[gpu.Nvml, list[int]] | None:
    """NVML and the GPUs that this engine's profiles use; ``None`` where there are none to be watched."""
    if setup.engine.kind != "gpu":
        return None
    nvml = gpu.open_nvml()
    if isinstance(nvml, str):
        return None
    return nvml, visible_indices(nvml, setup.engine.env, setup.ranks)
