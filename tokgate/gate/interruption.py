"""Interruption: how a run that was cut short says so, wherever its results are read."""

from __future__ import annotations

from dataclasses import dataclass

COMMAND = "TOKGATE_COMMAND"
"""Variable that holds the command which repeats the run, for a caller of pytest."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """What cut a run short, and how far it had come.

    Attributes:
        why: ``interrupted by SIGINT``, ``cut short: stopping after 1 failures``.
        signal: its name, where one came.
        judged: tests of the gate that reached a verdict.
        tests: that were selected.
        again: the command that repeats the run.
    """

    why: str
    signal: str | None
    judged: int
    tests: int
    again: str

    @property
    def line(self) -> str:
        """The one line that stands before all else."""
        return f"{self.why}: {self.judged} of {self.tests} tests judged; again: {self.again}"

    def facts(self) -> dict[str, object]:
        """For ``run.json``."""
        return {
            "why": self.why,
            "signal": self.signal,
            "tests_judged": self.judged,
            "tests_not_judged": self.tests - self.judged,
            "again": self.again,
        }
