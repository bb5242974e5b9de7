"""What a hung engine was doing, collected in under ten seconds and written to one text file."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tokgate.host import gpu, proc
from tokgate.host.proc import Process
from tokgate.server.logtail import last_lines

BUDGET_S = 8.0
_PLAIN_S = 3.0
_LOG_LINES = 40
_NVML_S = 3.0
_NVML_SILENT = ["NVML gave no answer within 3 s: the GPU or its driver hangs too"]
_FRAMES_SHOWN = 4
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
    stacks = _stacks(members, until)
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
    ranks = {title: stack for title, stack in zip(titles, stacks, strict=True) if "scheduler" in title}
    if odd := odd_rank(ranks):
        summary.insert(0, f"likely cause: {odd}")
    for process, stack in zip(members, stacks, strict=True):
        text += ["", f"== stack of {process.pid} {proc.title(process)}", stack]
        if short := _short(stack):
            summary.append(f"stack of {process.pid} {proc.title(process)}: {short}")
    if stacks and not any(_short(stack) for stack in stacks):
        summary.append(f"no stacks: {_first_line(stacks[0])}")
    text += ["", "== /proc", *kernel]
    path: Path | None = folder / f"{name}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        assert path is not None
        path.write_text("\n".join(text) + "\n", encoding="utf-8")
    except OSError as error:
        summary.append(f"forensics could not be written to {folder}: {error.strerror}")
        path = None
    return Forensics(path, tuple(summary), time.monotonic() - began)


def py_spy() -> Path | None:
    """The py-spy of tokgate's own environment, else the one on PATH."""
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if (folder / "py-spy").is_file():
            return folder / "py-spy"
    found = shutil.which("py-spy")
    return Path(found) if found else None


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
            f"utilisation {card.utilisation_percent} %, SM clock {card.sm_clock_mhz} MHz, "
            f"throttle {card.throttle}"
        )
        for holder in card.processes or ():
            lines.append(f"  pid {holder.pid} {holder.mib} MiB {holder.name}")
            if holder.pid in ours:
                summary.append(
                    f"GPU {index}: {holder.name} ({holder.pid}) holds {holder.mib} MiB, "
                    f"utilisation {card.utilisation_percent} %"
                )
        if card.processes is None:
            lines.append("  NVML does not list processes here")
    return lines, summary


def _stacks(members: Sequence[Process], until: float) -> list[str]:
    tool = py_spy()
    if tool is None:
        return ["py-spy is not installed in tokgate's environment" for _ in members]
    if not members:
        return []

    def dump(process: Process) -> str:
        stopped = process.state in {"T", "t"}
        plain = _run(tool, process.pid, ["--nonblocking"] if stopped else [], min(_PLAIN_S, until - _now()))
        # py-spy stops a process to read native frames; one that is stopped already would keep it waiting.
        if stopped or not _short(plain) or until - _now() < 1.5:
            return plain
        native = _run(tool, process.pid, ["--native"], until - _now() - 0.5)
        return native if _short(native) else f"{plain}\n(native frames: {_first_line(native)})"

    with ThreadPoolExecutor(max_workers=min(8, len(members))) as pool:
        return list(pool.map(dump, members))


def _run(tool: Path, pid: int, options: Sequence[str], timeout_s: float) -> str:
    if timeout_s <= 0:
        return "py-spy: no time left"
    try:
        done = subprocess.run(
            [str(tool), "dump", "--pid", str(pid), *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"py-spy: no answer within {timeout_s:.1f} s"
    except OSError as error:
        return f"py-spy: {error}"
    return done.stdout if done.returncode == 0 else f"py-spy: {done.stderr.strip() or done.returncode}"


def _frames(stack: str) -> list[str]:
    """Python frames of the main thread, or of the first one, innermost first."""
    threads: list[tuple[str, list[str]]] = []
    for line in stack.splitlines():
        if line.startswith("Thread "):
            threads.append((line, []))
        elif line.startswith("    ") and threads:
            threads[-1][1].append(line.strip())
    if not threads:
        return []
    frames = next((frames for head, frames in threads if "MainThread" in head), threads[0][1])
    return [frame for frame in frames if ".py:" in frame] or frames


def _short(stack: str) -> str:
    return " < ".join(_frames(stack)[:_FRAMES_SHOWN])


def odd_rank(stacks: Mapping[str, str]) -> str | None:
    """The rank that stands elsewhere than the others, in words: in a hung collective they wait for it.

    Args:
        stacks: py-spy's text by title of the rank's process; three ranks at least.
    """
    frames = {title: _frames(stack)[::-1] for title, stack in stacks.items() if _frames(stack)}
    if len(frames) < 3:
        return None
    # Ranks have roles, so whole functions may be a rank's own: where all are in one function, its line tells.
    at = {
        title: dict(frame.rsplit(":", 1) for frame in rank if ":" in frame) for title, rank in frames.items()
    }
    for function in (frame.rsplit(":", 1)[0] for frame in next(iter(frames.values()))):
        lines: dict[str, list[str]] = {}
        for title, functions in at.items():
            lines.setdefault(functions.get(function, ""), []).append(title)
        if "" in lines or len(lines) < 2:
            continue
        few = min(lines.values(), key=len)
        if len(few) * 2 < len(frames):
            who = ", ".join(few)
            return f"{who} is elsewhere than the other ranks: {_short(stacks[few[0]])}"
    return None


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no output"


def _now() -> float:
    return time.monotonic()
