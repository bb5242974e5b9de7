"""Verdict: what tokgate says of one thing it looked at, and why.

Line 1 alone suffices: ``KIND subject headline``. Two kinds of claim are kept apart: REGRESSION and
IMPROVED speak of a build and need several launches; NET_LOSS, HANG and DIVERGED speak of the servers
that were measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

Outcome = Literal["green", "failed", "undecided", "neutral"]


class Kind(StrEnum):
    """The verdicts, in the order in which a summary lists them (worst first)."""

    HANG = "HANG"
    EXITED = "EXITED"
    NOT_SERVING = "NOT_SERVING"
    DIVERGED = "DIVERGED"
    REGRESSION = "REGRESSION"
    NET_LOSS = "NET_LOSS"
    NOT_REPLAYED = "NOT_REPLAYED"
    MISCONFIGURED = "MISCONFIGURED"
    INCOMPARABLE = "INCOMPARABLE"
    MISSING = "MISSING"
    UNFIT = "UNFIT"
    INCONCLUSIVE = "INCONCLUSIVE"
    VACUOUS = "VACUOUS"
    NOT_APPLICABLE = "NOT_APPLICABLE"
    IMPROVED = "IMPROVED"
    PASS = "PASS"


_OUTCOMES: Mapping[Kind, Outcome] = {
    Kind.PASS: "green",
    Kind.IMPROVED: "green",
    Kind.INCONCLUSIVE: "undecided",
    Kind.VACUOUS: "neutral",
    Kind.NOT_APPLICABLE: "neutral",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One verdict.

    Attributes:
        kind: what is said.
        subject: what it is said of: ``workload[profile]`` or ``startup[profile]``.
        headline: the rest of line 1: metric, got against expected, change with interval, limit.
        body: lines that follow: compared with what, the control, the split, likely cause.
        next_command: what to run next, if anything.
        files: paths of samples, logs and forensics.
        evidence: the figures behind the line, JSON values only, units in the key names.
    """

    kind: Kind
    subject: str
    headline: str
    body: tuple[str, ...] = ()
    next_command: str | None = None
    files: tuple[str, ...] = ()
    evidence: Mapping[str, object] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """``green``, ``failed``, ``undecided`` (INCONCLUSIVE) or ``neutral``."""
        return _OUTCOMES.get(self.kind, "failed")

    @property
    def line(self) -> str:
        """Line 1."""
        return f"{self.kind} {self.subject} {self.headline}"

    def text(self) -> str:
        """The whole message: line 1, the indented body, the next command, the files."""
        lines = [self.line, *(f"  {line}" for line in self.body)]
        if self.next_command:
            lines.append(f"  next: {self.next_command}")
        lines += [f"  file: {path}" for path in self.files]
        return "\n".join(lines)


def exit_code(verdicts: Iterable[Verdict], *, strict_inconclusive: bool = False) -> int:
    """tokgate's exit code for a set of verdicts.

    0: all green or neutral, and at least one is green; 1: a failed verdict; 3: an UNFIT host, or nothing
    failed but nothing was decided either, or something is undecided that was measured worse than its
    limit (``beyond_limit`` in the evidence) or that ``strict_inconclusive`` asks to be decided.
    """
    found = list(verdicts)
    failed = [v for v in found if v.outcome == "failed"]
    if any(v.kind is not Kind.UNFIT for v in failed):
        return 1
    if failed:
        return 3
    undecided = [v for v in found if v.outcome == "undecided"]
    suspect = any(v.evidence.get("beyond_limit") for v in undecided)
    green = any(v.outcome == "green" for v in found)
    if undecided and (strict_inconclusive or suspect or not green):
        return 3
    return 0 if green else 3
