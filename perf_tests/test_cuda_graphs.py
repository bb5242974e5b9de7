"""CUDA graphs: captured, really replayed, and worth having."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokgate.config.workloads import Workload
from tokgate.gate.run import Run
from tokgate.gate.visit import Visit
from tokgate.verdict import Verdict

Report = Callable[[Verdict], None]


def test_replay(server: Visit, workload: Workload, run: Run, report: Report) -> None:
    """The log's captures and the server's counter of passes; with ``cuda_graphs: off``, none of either."""
    report(run.ask.replay(server, workload))


@pytest.mark.profiles("traced")
def test_graph_launches(server: Visit, workload: Workload, run: Run, report: Report) -> None:
    """With --trace-steps: every part of a step is launched as its graph, as the engine's own profiler shows."""
    report(run.ask.launches(server, workload))


@pytest.mark.profiles("graphs")
def test_graphs_on_off(server: Visit, workload: Workload, run: Run, report: Report) -> None:
    """Faster than the same profile without graphs, at the same accept length."""
    report(run.ask.graphs(server, workload))
