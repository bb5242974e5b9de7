"""Speculative profiles against their references: is it a gain at all, and at which accept length."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokgate.config.workloads import Workload
from tokgate.gate.run import Run
from tokgate.gate.visit import Visit
from tokgate.verdict import Verdict

Report = Callable[[Verdict], None]


@pytest.mark.profiles("speculative")
def test_net_gain(server: Visit, workload: Workload, run: Run, report: Report) -> None:
    """Faster than the same workload without speculation, on the same host in the same run."""
    report(run.ask.net_gain(server, workload))


@pytest.mark.profiles("speculative")
def test_accept_length(server: Visit, workload: Workload, run: Run, report: Report) -> None:
    """Accept length, gated apart from speed, so that neither masks the other: exactly for a synthetic pair,
    against the stored baseline for another model."""
    report(run.ask.accept_length(server, workload))
