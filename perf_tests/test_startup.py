"""Every server starts: each phase within its deadline, and a real generation at the end."""

from __future__ import annotations

from collections.abc import Callable

from tokgate.gate.campaign import Visit
from tokgate.gate.run import Run
from tokgate.verdict import Verdict


def test_startup(server: Visit, run: Run, report: Callable[[Verdict], None]) -> None:
    """The server of the profile is ready; a hang or a death on the way is this test's failure."""
    report(run.judge.startup(server.startup()))
