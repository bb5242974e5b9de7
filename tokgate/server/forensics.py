"""What a hung engine was doing, collected in under ten seconds and written to one text file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokgate.host import gpu, proc
from tokgate.host.proc import Process
from tokgate.server import stacks
from tokgate.server.logtail import last_lines

BUDGET_S = 8.0
_LOG_LINES = 40
_NVML_S = 3.0
_NVML_SILENT = ["NVML gave no answer within 3 s: the GPU or its driver hangs too"]
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Forensics:
    """The evidence of a hang.

    Attributes:
        path: the file; ``None`` when it could not be written.
        summary: a few lines for the message.
        seconds: how long collecting took.
    """

    path: Path | None
    summary: tuple[str, ...]
    seconds: float


def collect(members: Sequence[Process], log: Path, folder: Path, name: str, reason: str) -> Forensics:
    """Collect and write.

    Args:
        members: the engine's processes.
        name: stem of the file's name.
        reason: why, first line of the file.
    """
    began = time.monotonic()
    until = began + BUDGET_S
    table = [_row(process) for process in members]
    # Memory and kernel state first: the tracer changes states and scheduling counters.
    kernel = [_kernel(process) for process in members]
    gpus, gpu_summary = gpu.within(_NVML_S, lambda: _gpus(members), (_NVML_SILENT, _NVML_SILENT))
    found = stacks.dump(members, until)
    text = [
        reason,
        "",
        "== processes (pid, parent, state, resident MiB, kernel wait, name)",
        *table,
        "",
        "== GPUs",
        *gpus,
        "",
        "== last log lines",
        *last_lines(log, _LOG_LINES),
    ]
    summary = [*_states(members), *gpu_summary]
    titles = [proc.title(process) for process in members]
    ranks = {title: stack for title, stack in zip(titles, found, strict=True) if "scheduler" in title}
    if odd := stacks.odd_rank(ranks):
        summary.insert(0, f"likely cause: {odd}")
    any_stack = any(stacks.short(stack) for stack in found)
    for process, stack in zip(members, found, strict=True):
        text += ["", f"== stack of {process.pid} {proc.title(process)}", stack]
        if short := stacks.short(stack):
            summary.append(f"stack of {process.pid} {proc.title(process)}: {short}")
        elif any_stack and stack.startswith(stacks.FAILED):
            summary.append(
                f"stack of {process.pid} {proc.title(process)}: absent, {stacks.first_line(stack)}"
            )
    if found and not any_stack:
        summary.append(f"no stacks: {stacks.first_line(found[0])}")
    text += ["", "== /proc", *kernel, "", f"collected in {time.monotonic() - began:.1f} s"]
    path: Path | None = folder / f"{name}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        assert path is not None
        path.write_text("\n".join(text) + "\n", encoding="utf-8")
    except OSError as error:
        summary.append(f"forensics could not be written to {folder}: {error.strerror}")
        path = None
    return Forensics(path, tuple(summary), time.monotonic() - began)


def _row(process: Process) -> str:
    rss = proc.rss_bytes(process.pid)
    resident = "?" if rss is None else f"{rss / MIB:.0f}"
    wait = proc.text(process.pid, "wchan") or "?"
    return (
        f"{process.pid} {process.parent} {process.state} ({proc.STATES.get(process.state, '?')}) "
        f"{resident} {wait} {proc.title(process)} | {(proc.command_line(process.pid) or '')[:160]}"
    )


def _states(members: Sequence[Process]) -> list[str]:
    lines = []
    for process in members:
        rss = proc.rss_bytes(process.pid)
        resident = "" if rss is None else f", {rss / MIB:.0f} MiB resident"
        state = proc.STATES.get(process.state, process.state)
        lines.append(f"process {process.pid} {proc.title(process)}: {state}{resident}")
    return lines


def _kernel(process: Process) -> str:
    parts = [f"-- {process.pid} {proc.title(process)}"]
    for name in ("schedstat", "wchan", "syscall", "stack", "status"):
        parts.append(f"{name}: {(proc.text(process.pid, name) or 'not readable').strip()}")
    return "\n".join(parts)


def _gpus(members: Sequence[Process]) -> tuple[list[str], list[str]]:
    nvml = gpu.open_nvml()
    if isinstance(nvml, str):
        return [f"none: {nvml}"], []
    ours = {process.pid for process in members}
    lines, summary = [], []
    for index in range(nvml.count):
        try:
            card = nvml.gpu(index)
        except nvml.error as error:
            lines.append(f"GPU {index} does not answer: {error}")
            summary.append(lines[-1])
            continue
        lines.append(
            f"GPU {index} {card.name}: {card.memory_used_mib} of {card.memory_total_mib} MiB, "
            f"utilisation {_told(card.utilisation_percent, '%')}, SM clock {_told(card.sm_clock_mhz, 'MHz')}, "
            f"throttle {card.throttle}"
        )
        for holder in card.processes or ():
            lines.append(f"  pid {holder.pid} {holder.size} {holder.name}")
            if holder.pid in ours:
                summary.append(
                    f"GPU {index}: {holder.name} ({holder.pid}) holds {holder.size}, "
                    f"utilisation {_told(card.utilisation_percent, '%')}"
                )
        if card.processes is None:
            lines.append("  NVML does not list processes here")
    return lines, summary


def _told(value: int | None, unit: str) -> str:
    return "not reported" if value is None else f"{value} {unit}"
