"""Processes as /proc shows them. Linux only; what cannot be read is ``None``, never 0."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STATES: Mapping[str, str] = {
    "R": "running",
    "S": "sleeping",
    "D": "in uninterruptible sleep",
    "T": "stopped by a signal",
    "t": "stopped by a tracer",
    "Z": "zombie",
    "I": "idle",
}


@dataclass(frozen=True, slots=True)
class Process:
    """One row of the process table. ``pid`` and ``start_ticks`` together name a process for ever.

    Two rows are equal when they are of the same process, whatever its state and parent then.
    """

    pid: int
    parent: int = field(compare=False)
    session: int = field(compare=False)
    state: str = field(compare=False)
    start_ticks: int
    name: str = field(compare=False)

    @property
    def alive(self) -> bool:
        """Neither gone nor a zombie."""
        return self.state not in {"Z", "X"}


@dataclass(frozen=True, slots=True)
class Io:
    """Bytes read so far: ``rchar`` through any read call, ``read_bytes`` from storage."""

    rchar: int
    read_bytes: int


def read(pid: int) -> Process | None:
    """The process of that id, or ``None`` when there is none."""
    fields = _stat(pid)
    if fields is None:
        return None
    name, rest = fields
    return Process(pid, int(rest[1]), int(rest[3]), rest[0], int(rest[19]), name)


def table() -> dict[int, Process]:
    """Every visible process by id."""
    found = {}
    with os.scandir(PROC) as entries:
        for entry in entries:
            if entry.name.isdigit() and (process := read(int(entry.name))) is not None:
                found[process.pid] = process
    return found


def descendants(root: int, processes: Mapping[int, Process]) -> list[Process]:
    """Children of ``root``, their children and so on, in order of age; not ``root`` itself."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += [process.pid for process in below]
    return sorted(found, key=lambda process: (process.start_ticks, process.pid))


def exit_status(pid: int) -> int | None:
    """Exit status of a zombie as :attr:`subprocess.Popen.returncode` gives it; ``None`` where not known."""
    fields = _stat(pid)
    if fields is None or fields[1][0] != "Z":
        return None
    try:
        return os.waitstatus_to_exitcode(int(fields[1][49]))
    except (IndexError, ValueError):
        return None


def command_line(pid: int) -> str | None:
    """Arguments joined by spaces (or the title that the process gave itself)."""
    raw = _bytes(pid, "cmdline")
    return None if raw is None else raw.replace(b"\0", b" ").decode(errors="replace").strip()


def title(process: Process) -> str:
    """Short name for messages: ``sglang::scheduler_TP0`` where the process names itself, else its program."""
    line = command_line(process.pid) or process.name
    first = line.split(" ", 1)[0]
    return first if "::" in first else process.name


def environment(pid: int) -> dict[str, str] | None:
    """Environment with which the process was started, or ``None`` where it may not be read."""
    raw = _bytes(pid, "environ")
    if raw is None:
        return None
    pairs = (item.decode(errors="replace").partition("=") for item in raw.split(b"\0") if b"=" in item)
    return {name: value for name, _, value in pairs}


def environment_bytes(pid: int) -> bytes:
    """The raw environment, empty where it may not be read."""
    return _bytes(pid, "environ") or b""


def io(pid: int) -> Io | None:
    """Bytes read by the process so far."""
    raw = _bytes(pid, "io")
    if raw is None:
        return None
    values = dict(line.split(": ", 1) for line in raw.decode().splitlines() if ": " in line)
    try:
        return Io(int(values["rchar"]), int(values["read_bytes"]))
    except (KeyError, ValueError):
        return None


def rss_bytes(pid: int) -> int | None:
    """Resident memory, bytes."""
    raw = _bytes(pid, "statm")
    parts = (raw or b"").split()
    return int(parts[1]) * PAGE_BYTES if len(parts) > 1 else None


def text(pid: int, name: str) -> str | None:
    """A file of /proc/PID as text, or ``None`` where it may not be read."""
    raw = _bytes(pid, name)
    return None if raw is None else raw.decode(errors="replace").replace("\0", " ")


def age_s(process: Process) -> float:
    """Seconds since the process was started."""
    uptime_s = float((PROC / "uptime").read_text().split()[0])
    return max(0.0, uptime_s - process.start_ticks / TICKS_PER_S)


def is_same(process: Process) -> bool:
    """Whether that very process (not a later one with its id) still lives."""
    now = read(process.pid)
    return now is not None and now.alive and now.start_ticks == process.start_ticks


def send(process: Process, number: signal.Signals) -> bool:
    """Signal that very process; false when it is gone. A later process with its id is never hit."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (ProcessLookupError, OSError):
        return False
    try:
        now = read(process.pid)
        if now is None or now.start_ticks != process.start_ticks or not now.alive:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def listeners(port: int) -> set[int]:
    """Socket inodes that listen on a TCP port, IPv4 or IPv6."""
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            parts = line.split()
            if parts[3] == "0A" and int(parts[1].rsplit(":", 1)[1], 16) == port:
                found.add(int(parts[9]))
    return found


def holders(inodes: set[int], among: Iterable[Process] | None = None) -> list[Process]:
    """Processes that hold one of these sockets; those whose descriptors may not be read are left out."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    found = []
    for process in table().values() if among is None else among:
        try:
            with os.scandir(PROC / str(process.pid) / "fd") as entries:
                if any(_link(entry.path) in wanted for entry in entries):
                    found.append(process)
        except OSError:
            continue
    return found


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def _bytes(pid: int, name: str) -> bytes | None:
    try:
        return (PROC / str(pid) / name).read_bytes()
    except OSError:
        return None


def _stat(pid: int) -> tuple[str, list[str]] | None:
    raw = _bytes(pid, "stat")
    if not raw:
        return None
    head, _, tail = raw.decode(errors="replace").rpartition(")")
    return head.partition("(")[2], tail.split()
