"""Throughput and latency of every profile against stored baselines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.benchmarks import ReplayClock, replay
from tokgate.config.workloads import Workload
from tokgate.gate.run import Run
from tokgate.gate.visit import Visit
from tokgate.verdict import Verdict

Report = Callable[[Verdict], None]


@pytest.mark.benchmark(timer=ReplayClock.now, group="output_tok_s")
def test_throughput(server: Visit, workload: Workload, run: Run, report: Report, benchmark: object) -> None:
    """``output_tok_s`` against the stored baseline; each run is a round of pytest-benchmark."""
    measured = server.measured(workload)
    replay(benchmark, measured)
    report(run.ask.against_baseline(server, workload, "output_tok_s"))


@pytest.mark.metrics("ttft_s_p50", "step_ms_p50")
def test_latency(server: Visit, workload: Workload, metric: str, run: Run, report: Report) -> None:
    """Time to first token and step time against the stored baseline."""
    report(run.ask.against_baseline(server, workload, metric))
