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
from tokgate.server.ledger import GpuLedger, given_back_mib

# GPU memory counts as given back when this little more than before the launch is in use.
GPU_SLACK_MIB = 64
_AFTER_ROOT_S = 1.0
_AFTER_WORKERS_S = 1.0
_RELEASE_S = 10.0
_NVML_S = 3.0


@dataclass(frozen=True, slots=True)
class Teardown:
    """How a server ended.

    Attributes:
        seconds: from the first signal until processes, port and GPU memory were back.
        forced: KILL was needed because the server did not end on TERM within its time.
        killed: processes that outlived the server and were killed, ``pid 12 (name)``.
        gpu_mib_back: device memory given back, MiB by GPU index; ``None`` without NVML.
        gpu_mib_left: device memory that the launch still holds.
        holders: processes that do not die, or who still holds the port or GPU memory; empty when all is
            back.
        hang: set when the server ignored TERM: the evidence.
        gpus_lost: indices of GPUs that answered before the launch and do not any more.
    """

    seconds: float
    forced: bool
    killed: tuple[str, ...]
    gpu_mib_back: Mapping[int, int] | None
    gpu_mib_left: Mapping[int, int] | None
    holders: tuple[str, ...]
    hang: Hang | None = None
    gpus_lost: tuple[int, ...] = ()

    @property
    def told(self) -> tuple[str, ...]:
        """What a message about the server says of its end: GPU memory, and what is not back."""
        lines = [
            f"GPU {index} answers no more, so the fault may be the host's: sudo dmesg | grep -i nvrm"
            for index in self.gpus_lost
        ]
        left = self.gpu_mib_left or {}
        for index, mib in (self.gpu_mib_back or {}).items():
            # A server that died had given all back before it was ended.
            parts = [f"{mib} MiB given back"] if mib else []
            parts += [f"{left[index]} MiB still held"] if index in left else []
            if parts:
                lines.append(f"ended in {self.seconds:.1f} s: GPU {index}: {', '.join(parts)}")
        return (*lines, *(f"not given back: {holder}" for holder in self.holders))


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
    hang = None
    members = group.members()
    held_before = ledger.held([process.pid for process in group.known()])
    ended = group.root.poll() is not None
    if not ended and grace_s > 0:
        ended = _terminate(group, grace_s)
        if not ended and on_hang is not None:
            hang = on_hang(group.members(), time.monotonic() - began)
    if ended:
        _wait_for_workers(group)
    own = {process.pid for process in group.members()} if not ended else {group.pid}
    _signal_group(group, signal.SIGKILL)
    group.close()
    seen = {*members, *group.known()}
    killed = marker.kill(group.mark, seen)
    undead = [process for process in seen if proc.is_same(process)]
    survivors = [
        f"pid {process.pid} ({title})" for process, title in killed.items() if process.pid not in own
    ]
    for path in files:
        path.unlink(missing_ok=True)
    pids = [process.pid for process in seen]
    holders = [_undead_words(process) for process in undead] or _wait_released(host, port, ledger, pids)
    held = ledger.held(pids)
    ledger.end()
    if not undead:
        reaper.forget(group.mark)
    return Teardown(
        seconds=time.monotonic() - began,
        forced=not ended,
        killed=tuple(survivors) if grace_s > 0 else (),
        gpu_mib_back=given_back_mib(held_before, held),
        gpu_mib_left=ledger.left_mib(held),
        holders=tuple(holders),
        hang=hang,
        gpus_lost=ledger.lost(held),
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


def _wait_for_workers(group: ProcessGroup) -> None:
    """Workers that were told to end, or killed with their parent, take a moment to be gone: no survivors yet."""
    until = time.monotonic() + _AFTER_ROOT_S
    while any(process.pid != group.pid for process in group.members()) and time.monotonic() < until:
        time.sleep(0.02)


def _signal_group(group: ProcessGroup, number: signal.Signals) -> None:
    # Only while the root is not yet collected is its number surely ours.
    if group.root.returncode is None:
        try:
            os.killpg(group.pid, number)
        except ProcessLookupError:
            return


def _wait_released(host: str, port: int, ledger: GpuLedger, pids: Sequence[int]) -> list[str]:
    until = time.monotonic() + _RELEASE_S
    while True:
        held = []
        foreign = False
        if not ports.is_free(port, host):
            held.append(f"port {port}: {ports.holder(port)}")
            # All of ours are dead: a process that still listens there is another's, and will go on.
            foreign = bool(proc.holders(proc.listeners(port)))
        left = ledger.left_mib(ledger.held(pids)) or {}
        for index, mib in left.items():
            if mib > GPU_SLACK_MIB:
                held.append(f"GPU {index}: {mib} MiB more than before the launch: {_gpu_holders(index)}")
        if not held or (foreign and len(held) == 1) or time.monotonic() > until:
            return held
        time.sleep(0.02 if time.monotonic() - until + _RELEASE_S < 1 else 0.2)


def _undead_words(process: Process) -> str:
    now = proc.read(process.pid) or process
    state = proc.STATES.get(now.state, now.state)
    return f"pid {process.pid} ({proc.title(process)}) does not die of KILL: {state}"


def _gpu_holders(index: int) -> str:
    def ask() -> str:
        nvml = gpu.open_nvml()
        if isinstance(nvml, str):
            return nvml
        found = nvml.processes(index)
        if not found:
            return "NVML lists no process"
        return ", ".join(f"pid {item.pid} ({item.name}, {item.size})" for item in found)

    return gpu.within(_NVML_S, ask, "NVML gives no answer")
