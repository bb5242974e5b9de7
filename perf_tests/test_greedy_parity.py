"""Greedy output of every speculative profile equals greedy output without speculation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokgate.gate.run import Run
from tokgate.gate.visit import Visit
from tokgate.verdict import Verdict


@pytest.mark.profiles("speculative")
def test_greedy_parity(server: Visit, case: str, run: Run, report: Callable[[Verdict], None]) -> None:
    """Token ids, request by request, from the first token to the end."""
    report(run.ask.parity(case, server))
