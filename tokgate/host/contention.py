"""What else the host was doing while a run was measured: counters before and after.

A counter that the host does not have is left out, never 0.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tokgate.host import proc
from tokgate.host.gpu import Nvml


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters at one moment.

    Attributes:
        at_s: CLOCK_MONOTONIC.
        thread_delay_s: time runnable but not running, by (pid, thread id).
        steal_s: CPU time that the hypervisor gave to others, summed over CPUs.
        cpu_used_s: CPU time that this machine used, summed over CPUs.
        load_1m: load average.
        throttle_s: time for which power or heat slowed a GPU down, by GPU index and cause.
        foreign: GPU processes that are not the engine's, by GPU index; ``None`` where the pids that
            NVML gives cannot be matched with visible ones.
    """

    at_s: float
    thread_delay_s: Mapping[tuple[int, int], float]
    steal_s: float | None
    cpu_used_s: float | None
    load_1m: float | None
    throttle_s: Mapping[tuple[int, str], float]
    foreign: Mapping[int, int] | None


def snapshot(
    pids: Iterable[int],
    nvml: Nvml | None = None,
    gpus: Sequence[int] = (),
    beside: Iterable[int] = (),
) -> Snapshot:
    """Read the counters.

    Args:
        pids: the engine's processes.
        nvml: for GPU counters; absent without.
        gpus: NVML indices of the engine's GPUs.
        beside: processes of other servers that this gate started, which are not foreign either.
    """
    own = set(pids)
    stolen, used = cpu_s()
    return Snapshot(
        at_s=time.monotonic(),
        thread_delay_s={key: value for pid in own for key, value in _threads(pid)},
        steal_s=stolen,
        cpu_used_s=used,
        load_1m=_load(),
        throttle_s={} if nvml is None else nvml.throttle_s(gpus),
        foreign=None if nvml is None else foreign_processes(nvml, gpus, own | set(beside)),
    )


def difference(before: Snapshot, after: Snapshot) -> dict[str, float]:
    """What happened between two snapshots.

    Returns:
        ``interval_s``; ``scheduler_run_delay_s`` (the worst thread's wait for a CPU),
        ``engine_run_delay_s`` (summed over threads); ``steal_s`` (a CPU's average over all of them);
        ``stolen_share`` (of the CPU time that this machine wanted, used or stolen: on a machine with many
        idle CPUs, from which nothing can be stolen, the average hides what the busy ones lost);
        ``load_1m``; ``gpu_power_throttle_s`` and ``gpu_thermal_throttle_s`` (the worst GPU's);
        ``foreign_gpu_processes``. Absent counters are left out.
    """
    figures: dict[str, float] = {"interval_s": after.at_s - before.at_s}
    # A thread that began in between has waited only in between.
    delays = [value - before.thread_delay_s.get(key, 0.0) for key, value in after.thread_delay_s.items()]
    if delays:
        figures["scheduler_run_delay_s"] = max(0.0, *delays)
        figures["engine_run_delay_s"] = max(0.0, sum(delays))
    if before.steal_s is not None and after.steal_s is not None:
        stolen = after.steal_s - before.steal_s
        figures["steal_s"] = stolen / (os.cpu_count() or 1)
        if before.cpu_used_s is not None and after.cpu_used_s is not None:
            wanted = stolen + after.cpu_used_s - before.cpu_used_s
            if wanted > 0:
                figures["stolen_share"] = stolen / wanted
    if after.load_1m is not None:
        figures["load_1m"] = after.load_1m
    for (index, cause), value in after.throttle_s.items():
        if (index, cause) in before.throttle_s:
            name = f"gpu_{cause}_throttle_s"
            figures[name] = max(figures.get(name, 0.0), value - before.throttle_s[index, cause])
    if before.foreign is not None and after.foreign is not None:
        seen = [*before.foreign.values(), *after.foreign.values()]
        figures["foreign_gpu_processes"] = float(max(seen, default=0))
    return figures


def steal_s() -> float | None:
    """CPU time stolen since boot, summed over CPUs, seconds."""
    return cpu_s()[0]


def cpu_s() -> tuple[float | None, float | None]:
    """CPU time stolen and CPU time used since boot, summed over CPUs, seconds; ``None`` where not told."""
    try:
        fields = (proc.PROC / "stat").read_text().split("\n", 1)[0].split()
        user, nice, system, _idle, _wait, hard, soft, stolen = map(int, fields[1:9])
    except (OSError, IndexError, ValueError):
        return None, None
    return stolen / proc.TICKS_PER_S, (user + nice + system + hard + soft) / proc.TICKS_PER_S


def foreign_processes(nvml: Nvml, gpus: Sequence[int], own: set[int]) -> dict[int, int] | None:
    """GPU processes that are not ``own``, by GPU index.

    ``None`` where NVML does not list processes, or lists some of which none is visible here: inside a
    container its pids are the host's and cannot be told apart.
    """
    found: dict[int, int] = {}
    visible = False
    listed = False
    for index in gpus:
        processes = nvml.processes(index)
        if processes is None:
            return None
        listed = listed or bool(processes)
        visible = visible or any(proc.read(item.pid) is not None for item in processes)
        found[index] = sum(item.pid not in own for item in processes)
    return found if visible or not listed else None


def _threads(pid: int) -> list[tuple[tuple[int, int], float]]:
    found = []
    try:
        tasks = list((proc.PROC / str(pid) / "task").iterdir())
    except OSError:
        return []
    for task in tasks:
        try:
            found.append(((pid, int(task.name)), int((task / "schedstat").read_text().split()[1]) / 1e9))
        except (OSError, IndexError, ValueError):
            continue
    return found


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
