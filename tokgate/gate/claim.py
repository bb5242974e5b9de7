"""Claim: this host's GPUs for one run: locked against other gates, and fit to measure on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tokgate.errors import GpuBusy, HostFault
from tokgate.gate.setup import Setup
from tokgate.gate.words import count
from tokgate.host import fitness, gpu
from tokgate.host.gpu import Broken, Nvml
from tokgate.host.lock import GpuLocks
from tokgate.host.visible import BY_BUS, ORDER, VISIBLE, numbered_otherwise, visible_indices, why_no_more


@contextmanager
def claim(setup: Setup) -> Iterator[list[str]]:
    """Hold the GPUs that the run needs; does nothing for engines without one.

    Yields:
        Warnings about the host, one line each, for the record.

    Raises:
        HostFault: no driver, fewer GPUs than the profiles need, or one that does not answer.
        HostLocked: another gate holds one, longer than the request is willing to wait.
        GpuBusy: the host is not fit: foreign processes or leftovers on a GPU, throttled clocks, ...
    """
    if setup.engine.kind != "gpu":
        yield []
        return
    nvml = gpu.open_nvml()
    if isinstance(nvml, str):
        lacks = "cannot tell its GPUs" if isinstance(nvml, Broken) else "shows none"
        raise HostFault(
            f"engine '{setup.engine.name}' needs a GPU and this host {lacks}: {nvml}",
            ["tokgate doctor tells more"],
        )
    indices = _chosen(nvml, setup)
    with GpuLocks([nvml.uuids()[index] for index in indices], wait_s=setup.request.wait_gpu_s, on_wait=_say):
        findings = fitness.examine(setup.request.results, gpus=indices)
        unfit = [finding for finding in findings if finding.level == "unfit"]
        if unfit:
            raise GpuBusy(
                f"this host is not fit to measure on: {unfit[0].name}: {unfit[0].seen}",
                [
                    *(f"{finding.name}: {finding.seen}" for finding in unfit[1:]),
                    *(f"mend: {finding.mend}" for finding in unfit if finding.mend),
                ],
            )
        yield [f"{finding.name}: {finding.seen}" for finding in findings if finding.level == "warn"]


def _chosen(nvml: Nvml, setup: Setup) -> list[int]:
    """NVML indices of the GPUs that the run needs.

    Raises:
        HostFault: too few are visible, one does not answer, or which one is which cannot be told.
    """
    env = setup.engine.env
    indices = visible_indices(nvml, env, setup.ranks)
    if len(indices) < setup.ranks:
        seen = (
            "none is" if not indices else f"{len(indices)} is" if len(indices) == 1 else f"{len(indices)} are"
        )
        raise HostFault(
            f"the profiles need {count(setup.ranks, 'GPU')} and {seen} visible", [why_no_more(nvml, env)]
        )
    if mixed := numbered_otherwise(nvml, env):
        raise HostFault(mixed, [f"export {ORDER}={BY_BUS}, or name UUIDs in {VISIBLE}"])
    for index in indices:
        if (silence := nvml.silence(index)) is not None:
            raise HostFault(f"GPU {index} does not answer: {silence}", ["sudo dmesg | grep -i nvrm"])
    return indices


def _say(line: str) -> None:
    print(f"tokgate: {line}", file=sys.stderr, flush=True)
