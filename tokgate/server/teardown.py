"""Ends a launch so that nothing is left: TERM, KILL, the survivors' hunt, port and GPU memory back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokgate.errors import Hang
from tokgate.host import gpu, marker, ports, proc
from tokgate.host.proc import Process
from tokgate.server import reaper
from tokgate.server.group import ProcessGroup

# GPU memory counts as given back when this little more than before the launch is in use.
GPU_SLACK_MIB = 64
_AFTER_WORKERS_S = 1.0
_RELEASE_S = 10.0


@dataclass(frozen=True, slots=True)
class Teardown:
    """How a server ended.

    Attributes:
        seconds: from the first signal until processes, port and GPU memory were back.
        forced: KILL was needed because the server did not end on TERM within its time.
        killed: processes that outlived the server and were killed, ``pid 12 (name)``.
        gpu_mib_back: device memory given back, MiB by GPU index; ``None`` without NVML.
        gpu_mib_left: device memory above what was used before the launch.
        holders: who still holds the port or GPU memory; empty when all is back.
        hang: set when the server ignored TERM: the evidence.
    """

    seconds: float
    forced: bool
    killed: tuple[str, ...]
    gpu_mib_back: Mapping[int, int] | None
    gpu_mib_left: Mapping[int, int] | None
    holders: tuple[str, ...]
    hang: Hang | None = None


@dataclass(frozen=True, slots=True)
class GpuLedger:
    """Device memory in use before a launch, MiB by index. ``None`` where there is no NVML."""

    before_mib: Mapping[int, int] | None

    @classmethod
    def open(cls, kind: str, env: Mapping[str, str], count: int) -> GpuLedger:
        """Read the GPUs that an engine of that kind and environment will use."""
        nvml = gpu.open_nvml() if kind == "gpu" else ""
        if isinstance(nvml, str):
            return cls(None)
        return cls(nvml.used_mib(gpu.visible_indices(nvml, env, count)))

    def used_mib(self) -> dict[int, int] | None:
        """In use now, MiB by index."""
        nvml = gpu.open_nvml() if self.before_mib is not None else ""
        if isinstance(nvml, str) or self.before_mib is None:
            return None
        return nvml.used_mib(list(self.before_mib))

    def above_mib(self) -> dict[int, int] | None:
        """In use now beyond what was used before the launch."""
        now = self.used_mib()
        if now is None or self.before_mib is None:
            return None
        return {index: max(0, used - self.before_mib[index]) for index, used in now.items()}


def tear_down(
    group: ProcessGroup,
    *,
    host: str,
    port: int,
    grace_s: float,
    ledger: GpuLedger,
    on_hang: Callable[[Sequence[Process], float], Hang] | None = None,
    files: Sequence[Path] = (),
) -> Teardown:
    """End every process of a launch.

    Args:
        grace_s: how long the server may take to end on TERM; 0: KILL at once.
        on_hang: collects the evidence when it does not, before KILL.
        files: removed at the end (sockets, temporary files of the launch).
    """
    began = time.monotonic()
    used_before = ledger.used_mib()
    hang = None
    members = group.members()
    ended = group.root.poll() is not None
    if not ended and grace_s > 0:
        ended = _terminate(group, grace_s)
        if not ended and on_hang is not None:
            hang = on_hang(group.members(), time.monotonic() - began)
    own = {process.pid for process in group.members()} if not ended else {group.pid}
    _signal_group(group, signal.SIGKILL)
    group.close()
    killed = marker.kill(group.mark, [*members, *group.known()])
    survivors = [
        f"pid {process.pid} ({title})" for process, title in killed.items() if process.pid not in own
    ]
    for path in files:
        path.unlink(missing_ok=True)
    holders = _wait_released(host, port, ledger)
    left = ledger.above_mib()
    now = ledger.used_mib()
    back = None
    if used_before is not None and now is not None:
        back = {index: max(0, used_before[index] - now[index]) for index in now}
    reaper.forget(group.mark)
    return Teardown(
        seconds=time.monotonic() - began,
        forced=not ended,
        killed=tuple(survivors) if grace_s > 0 else (),
        gpu_mib_back=back,
        gpu_mib_left=left,
        holders=tuple(holders),
        hang=hang,
    )


def _terminate(group: ProcessGroup, grace_s: float) -> bool:
    """TERM, then wait. True when the root ended by itself (or only its epilogue was cut short)."""
    _signal_group(group, signal.SIGTERM)
    until = time.monotonic() + grace_s
    alone_since: float | None = None
    while group.root.poll() is None:
        now = time.monotonic()
        if now > until:
            return False
        # After its workers are gone SGLang sleeps for crash diagnostics: nothing there is worth waiting for.
        alone = all(process.pid == group.pid for process in group.members())
        alone_since = (alone_since or now) if alone and group.had_workers else None
        if alone_since is not None and now - alone_since > _AFTER_WORKERS_S:
            return True
        group.wait(0.02)
    return True


def _signal_group(group: ProcessGroup, number: signal.Signals) -> None:
    # Only while the root is not yet collected is its number surely ours.
    if group.root.returncode is None:
        try:
            os.killpg(group.pid, number)
        except ProcessLookupError:
            return


def _wait_released(host: str, port: int, ledger: GpuLedger) -> list[str]:
    until = time.monotonic() + _RELEASE_S
    while True:
        held = []
        foreign = False
        if not ports.is_free(port, host):
            held.append(f"port {port}: {ports.holder(port)}")
            # All of ours are dead: a process that still listens there is another's, and will go on.
            foreign = bool(proc.holders(proc.listeners(port)))
        above = ledger.above_mib() or {}
        for index, mib in above.items():
            if mib > GPU_SLACK_MIB:
                held.append(f"GPU {index}: {mib} MiB more than before the launch: {_gpu_holders(index)}")
        if not held or (foreign and len(held) == 1) or time.monotonic() > until:
            return held
        time.sleep(0.02 if time.monotonic() - until + _RELEASE_S < 1 else 0.2)


def _gpu_holders(index: int) -> str:
    nvml = gpu.open_nvml()
    if isinstance(nvml, str):
        return nvml
    found = nvml.processes(index)
    if not found:
        return "NVML lists no process"
    return ", ".join(f"pid {item.pid} ({item.name}, {item.mib} MiB)" for item in found)
