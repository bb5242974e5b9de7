"""The mark that every process of a launch carries in its environment, whatever it forks or detaches.

``TOKGATE_MARK`` names the launch, ``TOKGATE_OWNER`` the tokgate process that made it, as
``pid/start/namespace`` so that neither a reused pid nor another container's pid is taken for it.
Engines rename their processes with setproctitle, which overwrites the environment that /proc shows
unless ``SPT_NOENV`` is set; :func:`variables` sets it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokgate.host import proc
from tokgate.host.proc import Process

MARK = "TOKGATE_MARK"
OWNER = "TOKGATE_OWNER"


@dataclass(frozen=True, slots=True)
class Marked:
    """A process of some launch, and whether the tokgate that made it still lives.

    ``owner`` is ``alive``, ``dead`` or ``elsewhere`` (another PID namespace: not ours to judge).
    """

    process: Process
    mark: str
    owner: str


def variables(mark: str) -> dict[str, str]:
    """What a launch adds to its environment."""
    return {MARK: mark, OWNER: owner_token(), "SPT_NOENV": "1"}


def owner_token() -> str:
    """This process, for ``TOKGATE_OWNER``."""
    own = proc.read(os.getpid())
    return f"{os.getpid()}/{own.start_ticks if own else 0}/{_namespace()}"


def find(mark: str) -> list[Process]:
    """Living processes of that launch."""
    needle = f"{MARK}={mark}".encode()
    return [
        process
        for process in proc.table().values()
        if process.alive and needle in proc.environment_bytes(process.pid).split(b"\0")
    ]


def find_all() -> list[Marked]:
    """Living processes of every launch of any tokgate on this host that may be read."""
    needle = f"{MARK}=".encode()
    found = []
    for process in proc.table().values():
        if process.alive and needle in proc.environment_bytes(process.pid):
            environment = proc.environment(process.pid) or {}
            if MARK in environment:
                found.append(Marked(process, environment[MARK], owner_state(environment.get(OWNER, ""))))
    return found


def kill(mark: str, known: Iterable[Process] = (), deadline_s: float = 5.0) -> dict[Process, str]:
    """Kill what carries the mark, and those of ``known`` that still live, until none is left.

    Returns:
        The processes that were killed, and their titles, which die with them.
    """
    killed: dict[Process, str] = {}
    known = list(known)
    until = time.monotonic() + deadline_s
    while True:
        left = {process.pid: process for process in known if proc.is_same(process)}
        left |= {process.pid: process for process in (find(mark) if mark else ())}
        if not left or time.monotonic() > until:
            return killed
        for process in left.values():
            title = proc.title(process)
            if proc.send(process, signal.SIGKILL):
                killed.setdefault(process, title)
        time.sleep(0.02)


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink()).removeprefix("pid:")
    except OSError:
        return "?"


def owner_state(token: str) -> str:
    """``alive``, ``dead`` or ``elsewhere``, of the process that an :func:`owner_token` names."""
    try:
        pid, start, namespace = token.split("/")
        if namespace != _namespace():
            return "elsewhere"
        owner = proc.read(int(pid))
        return "alive" if owner and owner.alive and owner.start_ticks == int(start) else "dead"
    except ValueError:
        return "elsewhere"
