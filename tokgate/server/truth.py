"""The environment that the processes of a server really have."""

from __future__ import annotations

from collections.abc import Sequence

from tokgate.host import proc
from tokgate.host.proc import Process

PREFIXES = ("NCCL_", "CUDA_", "SGLANG_", "SGL_", "TORCH_", "TRITON_", "OMP_", "HF_HUB_")


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
            found[name] = {key: value for key, value in sorted(variables.items()) if key.startswith(PREFIXES)}
    return found
