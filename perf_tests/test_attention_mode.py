"""Attention mode decode of speculative verification against mode prefill: does it do anything?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokgate.config.workloads import Workload
from tokgate.gate.run import Run
from tokgate.gate.visit import Visit
from tokgate.verdict import Verdict


@pytest.mark.profiles("attention_mode")
def test_attention_mode(
    server: Visit, workload: Workload, run: Run, report: Callable[[Verdict], None]
) -> None:
    """Inert modes are said to be inert; real ones are compared with what these runs could have shown."""
    report(run.ask.attention_mode(server, workload))
