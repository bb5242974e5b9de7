"""Every server starts: each phase within its deadline and its usual time, and a real generation at the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokgate.gate.run import Run
from tokgate.gate.visit import Visit
from tokgate.verdict import Verdict

Report = Callable[[Verdict], None]


def test_startup(server: Visit, run: Run, report: Report) -> None:
    """The server of the profile is ready, as often as it is launched; a hang or a death is this test's failure."""
    report(run.judge.startup(server.starts()))


@pytest.mark.metrics(
    "startup_s",
    "imports_s",
    "weights_s",
    "capture:target-decode_s",
    "capture:target-verify_s",
    "capture:draft-decode_s",
    "capture:draft-extend_s",
)
def test_startup_time(server: Visit, metric: str, run: Run, report: Report) -> None:
    """Seconds of the whole start and of its phases against the stored baseline."""
    report(run.judge.startup_time(server.starts(), metric))


@pytest.mark.metrics("gpu_memory_mib", "graphs_gb", "kv_cache_tokens")
def test_memory(server: Visit, metric: str, run: Run, report: Report) -> None:
    """GPU memory of the server, its CUDA graphs', and the room left for the KV cache, against the baseline."""
    report(run.judge.memory(server.starts(), metric))
