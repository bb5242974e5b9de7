"""The environment that the processes of a server really have, and who gave it to them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokgate.host import proc
from tokgate.host.proc import Process
from tokgate.server.spec import LaunchSpec

PREFIXES = ("NCCL_", "CUDA_", "SGLANG_", "SGL_", "TORCH_", "TRITON_", "OMP_", "HF_HUB_")
# Reports are published: what opens something is told to be there, not what it is.
_SECRET = re.compile(r"SECRET|PASSWORD|API_?KEY|(?:^|_)TOKEN$|_KEY$")
HIDDEN = "(hidden)"
WORKER = "sglang::"
"""Titles of the processes that SGLang starts begin with this."""


def environments(members: Sequence[Process]) -> dict[str, dict[str, str]]:
    """Variables that change how an engine runs, of every process that may be read.

    Read from /proc: the environment with which a process was started. What a process sets for itself
    afterwards shows only in the children that it starts anew (not in those it forks).

    Returns:
        ``title (pid)`` -> variables, sorted by name.
    """
    found: dict[str, dict[str, str]] = {}
    for process in members:
        variables = proc.environment(process.pid)
        if variables is not None:
            name = f"{proc.title(process)} ({process.pid})"
            found[name] = _told(dict(sorted(variables.items())))
    return found


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable as some workers have it.

    Attributes:
        value: what they have; ``None``: it was given to the launch and they lack it.
        by: who gave it: ``shell``, ``engine file``, ``profile``, ``tokgate``, or ``SGLang``.
        given: what the launch was given, where that is something else; ``None``: nothing, or the same.
        workers: titles of the processes, without their numbers; empty: every worker.
    """

    name: str
    value: str | None
    by: str
    given: str | None = None
    given_by: str | None = None
    workers: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.given_by is not None and self.value is None:
            return f"{self.name} is missing (SGLang removed it; {self.given_by}: {self.given})"
        if self.given_by is not None:
            return f"{self.name}={self.value} (SGLang; {self.given_by} said {self.given})"
        return f"{self.name}={self.value} ({self.by})"


def variables(
    found: Mapping[str, Mapping[str, str]], spec: LaunchSpec, shell: Mapping[str, str] = os.environ
) -> list[Variable]:
    """Who gave the workers what they have, and what was given but did not reach them.

    Args:
        found: as :func:`environments` gives it.
        spec: the launch.
        shell: the environment in which the launch was made.

    Returns:
        Sorted by name; a variable that workers have in several values is listed once a value.
    """
    given = _given(spec, shell)
    workers = {name: own for name, own in found.items() if name.startswith(WORKER)} or dict(found)
    result = []
    for name in sorted({*given, *(key for own in workers.values() for key in own)}):
        values: dict[str | None, list[str]] = {}
        for worker, own in workers.items():
            values.setdefault(own.get(name), []).append(worker.partition(" (")[0])
        for value, titles in values.items():
            who = tuple(titles) if len(values) > 1 else ()
            asked, by = given.get(name, (None, None))
            if value == asked:
                if by is not None:
                    result.append(Variable(name, value, by, workers=who))
            else:
                result.append(Variable(name, value, "SGLang", asked, by, who))
    # A worker that lacks what SGLang set for another one alone was not denied anything.
    return [item for item in result if item.value is not None or item.given is not None]


def _given(spec: LaunchSpec, shell: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    sources: list[tuple[str, Mapping[str, str]]] = [
        ("shell", shell),
        ("tokgate", spec.env),
        ("engine file", spec.engine.env),
        ("profile", spec.profile.env),
    ]
    # What is launched is `spec.env` over the shell: a file's variable that it does not hold was replaced.
    final = _told({**shell, **spec.env})
    return {
        name: (value, by)
        for by, source in sources
        for name, value in _told(source).items()
        if value == final.get(name)
    }


def _told(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that are of interest, without what is nobody's business."""
    return {
        name: HIDDEN if _SECRET.search(name) else value
        for name, value in variables.items()
        if name.startswith(PREFIXES)
    }
