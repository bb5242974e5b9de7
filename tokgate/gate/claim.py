"""Claim: this host's GPUs for one run: locked against other gates, and fit to measure on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tokgate.errors import GpuBusy, HostFault
from tokgate.gate.setup import Setup
from tokgate.host import fitness, gpu
from tokgate.host.lock import GpuLocks


@contextmanager
def claim(setup: Setup) -> Iterator[list[str]]:
    """Hold the GPUs that the run needs; does nothing for engines without one.

    Yields:
        Warnings about the host, one line each, for the record.

    Raises:
        HostFault: no driver, or fewer GPUs than the profiles need.
        HostLocked: another gate holds one, longer than the request is willing to wait.
        GpuBusy: the host is not fit: foreign processes or leftovers on a GPU, throttled clocks, ...
    """
    if setup.engine.kind != "gpu":
        yield []
        return
    nvml = gpu.open_nvml()
    if isinstance(nvml, str):
        raise HostFault(f"-m gpu needs a GPU and this host shows none: {nvml}", ["tokgate doctor tells more"])
    indices = gpu.visible_indices(nvml, setup.engine.env, setup.ranks)
    if len(indices) < setup.ranks:
        raise HostFault(f"the profiles need {setup.ranks} GPUs and {len(indices)} are visible")
    uuids = [nvml.uuids()[index] for index in indices]
    with GpuLocks(uuids, wait_s=setup.request.wait_gpu_s, on_wait=_say):
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


def _say(line: str) -> None:
    print(f"tokgate: {line}", file=sys.stderr, flush=True)
