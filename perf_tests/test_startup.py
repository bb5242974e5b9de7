"""Every server starts: within its deadlines, by phase, and no slower than its baseline."""

from __future__ import annotations


def test_startup(server, run, report) -> None:
    """The server of the profile started, and one real generation had the right length."""
    report(run.judge.startup(server.startup()))
