"""Whether a host is fit to measure on: one finding for each thing that has spoiled a measurement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokgate.host import gpu_fitness, os_fitness
from tokgate.host.finding import ORDER, Finding, Level
from tokgate.host.gpu import Nvml, open_nvml


def examine(
    results: Path = Path(), *, gpus: Sequence[int] | None = None, nvml: Nvml | str | None = None
) -> list[Finding]:
    """Look at everything. Takes about a second: steal is sampled, a tracer is tried.

    Args:
        results: folder in which results and logs will be written.
        gpus: NVML indices to look at; ``None``: all.
        nvml: as :func:`~tokgate.host.gpu.open_nvml` gives it; ``None``: open it.
    """
    opened = open_nvml() if nvml is None else nvml
    findings = gpu_fitness.examine(opened, gpus)
    findings += [
        os_fitness.leftovers(),
        os_fitness.tracer(),
        os_fitness.receive_stamps(),
        os_fitness.steal(),
        os_fitness.governor(),
        os_fitness.cpu_speed(),
        os_fitness.load(),
        os_fitness.free_port(),
        os_fitness.disk(results),
        os_fitness.shared_memory(),
        *os_fitness.limits(),
    ]
    return findings


DIRTY = ("steal", "load")
"""Findings whose warning means that others used this host's CPUs when the run began; the rest warn of how a host is
built or set, the same today and tomorrow, or of evidence that would be missing."""


def dirty(warnings: Iterable[str]) -> list[str]:
    """Those of a run's warnings (``name: seen``) that say that its host was not its own."""
    return [warning for warning in warnings if warning.partition(":")[0] in DIRTY]


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level among findings; ``ok`` for none."""
    return max((finding.level for finding in findings), key=ORDER.index, default="ok")
