"""One engine's processes: started in a session of their own, followed, and ended to the last one."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokgate.errors import InterpreterMissing
from tokgate.host import marker, proc
from tokgate.host.proc import Process

# What a crash ends with; TERM and KILL may be the engine's own doing.
_CRASH_SIGNALS = {
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
}


@dataclass(frozen=True, slots=True)
class Death:
    """A process of the engine that ended though it should not have.

    Attributes:
        name: its title, such as ``sglang::scheduler_TP0``.
        status: exit code, negative for a signal; ``None`` when its parent already collected it.
        is_root: the process that tokgate itself started.
    """

    pid: int
    name: str
    status: int | None
    is_root: bool


class ProcessGroup:
    """The processes of one launch.

    Args:
        root: the process that was started, leader of its session.
        mark: value of ``TOKGATE_MARK`` that every process of the launch carries.
    """

    def __init__(self, root: subprocess.Popen[bytes], mark: str) -> None:
        self.root = root
        self.mark = mark
        self.started_s = time.monotonic()
        self._known: dict[tuple[int, int], Process] = {}
        self._workers: dict[int, tuple[Process, str]] = {}
        self._zombies: dict[int, tuple[str, int, int]] = {}
        self._pidfd = os.pidfd_open(root.pid)

    @classmethod
    def spawn(cls, argv: Sequence[str], env: Mapping[str, str], log: Path, mark: str) -> ProcessGroup:
        """Start the engine in its own session, output to ``log``.

        Args:
            env: added to this process's own environment.

        Raises:
            InterpreterMissing: the program does not exist or may not be executed.
        """
        environment = {**os.environ, **env, **marker.variables(mark)}
        with log.open("ab") as output:
            try:
                root = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise InterpreterMissing(
                    f"the engine's interpreter {argv[0]} cannot be run: {error.strerror}",
                    ["check 'python' in the engine file (--engine)"],
                ) from error
        return cls(root, mark)

    @property
    def pid(self) -> int:
        """Process id of the root, which is also its session and process group."""
        return self.root.pid

    @property
    def had_workers(self) -> bool:
        """Whether a scheduler or detokenizer was ever seen."""
        return bool(self._workers)

    def wait(self, seconds: float) -> None:
        """Sleep, but return at once when the root ends, or when it has been collected."""
        if self._pidfd >= 0:
            select.select([self._pidfd], [], [], seconds)

    def members(self) -> list[Process]:
        """Living processes of the launch, oldest first: descendants, the session, and those seen before."""
        processes = proc.table()
        found = {process.pid: process for process in proc.descendants(self.pid, processes)}
        for process in processes.values():
            if process.session == self.pid or process.pid == self.pid:
                found[process.pid] = process
        for pid, start in self._known:
            now = processes.get(pid)
            if now is not None and now.start_ticks == start:
                found[pid] = now
        self._zombies = self._note_zombies(found.values())
        living = [process for process in found.values() if process.alive]
        for process in living:
            self._known[process.pid, process.start_ticks] = process
            if process.pid != self.pid and process.pid not in self._workers and _is_worker(process):
                self._workers[process.pid] = (process, proc.title(process))
        return sorted(living, key=lambda process: (process.start_ticks, process.pid))

    def death(self) -> Death | None:
        """The death that matters most: the root's, or that of a worker whose parent has not noticed.

        Of several dead workers the one that failed: others often end in an orderly way because of it.
        """
        status = self.root.poll()
        if status is not None:
            return Death(self.pid, "the server process", status, True)
        dead: list[Death] = []
        for pid, (process, name) in self._workers.items():
            if proc.is_same(process):
                if "::" not in name:
                    self._workers[pid] = (process, proc.title(process))
                continue
            status = proc.exit_status(pid) if proc.read(pid) == process else None
            if "::" not in name and not _is_crash(status):
                # A pool that compiles kernels is spawned as schedulers are, and ends when it is done.
                continue
            dead.append(Death(pid, name, status, False))
        dead += [
            Death(pid, name, status, False)
            for pid, (name, status, looks) in self._zombies.items()
            if looks > 1
        ]
        return min(dead, key=_consequence, default=None)

    def descriptors(self) -> list[int]:
        """New pidfds of the processes whose death ends the server: the root, schedulers, the detokenizer.

        One that has died meanwhile is left out: :meth:`death` tells of it.
        """
        wanted = {self.pid, *self._workers}
        found = []
        for process in self.members():
            if process.pid in wanted:
                with contextlib.suppress(ProcessLookupError):
                    found.append(os.pidfd_open(process.pid))
        return found

    def _note_zombies(self, processes: Iterable[Process]) -> dict[int, tuple[str, int, int]]:
        """Children that crashed and that their parent has not collected: pid -> name, status, looks.

        A worker can die before it was ever seen alive. Tools that an engine runs are collected at once,
        so one that is found in two looks is a worker whose parent has not noticed.
        """
        found = {}
        for process in processes:
            status = proc.exit_status(process.pid) if process.state == "Z" else None
            if status is not None and status < 0 and _is_crash(status) and process.pid not in self._workers:
                looks = self._zombies.get(process.pid, ("", 0, 0))[2] + 1
                found[process.pid] = (process.name, status, looks)
        return found

    def known(self) -> list[Process]:
        """Every process ever seen in the launch, living or not."""
        return list(self._known.values())

    def close(self, within_s: float = 5.0) -> None:
        """Collect the root, which must have been killed, and give back its descriptor.

        A process in uninterruptible sleep (a driver that hangs) does not die: it is left uncollected.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.root.wait(within_s)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def _consequence(death: Death) -> tuple[bool, int]:
    # The detokenizer ends when its scheduler does; who ended in an orderly way did not begin it.
    return "detokenizer" in death.name, 2 if death.status == 0 else int(death.status is None)


def _is_crash(status: int | None) -> bool:
    return status is not None and (status > 0 or -status in _CRASH_SIGNALS)


def _is_worker(process: Process) -> bool:
    # Compilers, ldconfig and the like come and go while an engine starts; schedulers and the
    # detokenizer must stay. They are spawned by multiprocessing and rename themselves later.
    line = proc.command_line(process.pid) or ""
    if not line.startswith("sglang::") and "--multiprocessing-fork" not in line:
        return False
    # A worker that starts a tool forks first: until the copy has become the tool, it looks like the worker.
    return line != proc.command_line(process.parent)
