"""A bisection in words: what each stage found, and its rows in the log."""

from __future__ import annotations

from pathlib import Path

from tokgate.bump.bisection import Result
from tokgate.bump.candidates import subject_of
from tokgate.bump.steps import Step
from tokgate.report.bisect_markdown import Row, Stage

SHORT_COMMIT = 12


def answer(result: Result) -> str:
    """What a stage found, one line."""
    found = result.found
    if found is None:
        return result.stopped
    if found.first_bad is not None:
        return f"{found.first_bad} is the first bad one, {found.last_good} the last good one"
    return (
        f"one of {', '.join(found.suspects)} is the first bad one: {found.skipped} could not be judged; "
        f"{found.last_good} is good"
    )


def stage(what: str, result: Result, repository: Path | None) -> Stage:
    """One stage of the log.

    Args:
        what: ``versions`` or ``commits``.
        repository: of the commits.
    """
    text = answer(result)
    first = result.found.first_bad if result.found else None
    if what == "commits" and first is not None and repository is not None:
        text += f": {subject_of(repository, first)}"
    return Stage(what, [_short(v) for v in result.versions], text, [_row(step) for step in result.steps])


def _row(step: Step) -> Row:
    change = "-"
    if step.change_percent is not None:
        change = f"{step.change_percent:+.1f} %"
        if step.interval_percent is not None:
            change += f" ({step.interval_percent[0]:+.1f}..{step.interval_percent[1]:+.1f})"
    return Row(_short(step.version), step.finding, change, step.blocks, step.seconds / 60, step.why)


def _short(version: str) -> str:
    is_commit = len(version) == 40 and all(c in "0123456789abcdef" for c in version)
    return version[:SHORT_COMMIT] if is_commit else version
