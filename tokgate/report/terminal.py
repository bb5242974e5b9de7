"""The end of a terminal run: table, counts, what does not apply, where the results are."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokgate.report import ranks
from tokgate.report.rows import counts, rows
from tokgate.report.speculation_table import plain, speculation_rows
from tokgate.verdict import Verdict

MIN_WIDTH = 120
"""Columns that the table takes even on a narrower terminal: a cut figure is worse than a wrapped line."""

_STYLES = {"green": "green", "failed": "bold red", "undecided": "yellow", "neutral": "dim"}


def summary_lines(
    verdicts: Sequence[Verdict],
    *,
    not_applicable: Mapping[str, str],
    folder: Path,
    width: int,
    color: bool,
    strict_inconclusive: bool,
) -> list[str]:
    """Lines of the summary.

    Args:
        verdicts: all of the run.
        not_applicable: profile -> why it cannot exist on this engine.
        folder: of the results.
        width: of the terminal, in columns.
        color: whether to print ANSI colours.
        strict_inconclusive: whether an undecided verdict is to fail.
    """
    lines = _lines(table(verdicts), width, color) if verdicts else ["no verdict was reached"]
    lines += plain(speculation_rows(verdicts))
    lines += [f"not applicable: {name}: {reason}" for name, reason in not_applicable.items()]
    for found in ranks.rank_tables(verdicts):
        lines += ranks.lines(found) if found.telling else []
    if verdicts:
        lines.append(counts(verdicts))
        lines += undecided_line(verdicts, strict=strict_inconclusive)
    lines.append(f"results: {folder}")
    return lines


def undecided_line(verdicts: Sequence[Verdict], *, strict: bool) -> list[str]:
    """What undecided verdicts make of a run in which nothing failed, as its exit code has it; none for others."""
    undecided = [verdict for verdict in verdicts if verdict.outcome == "undecided"]
    if any(verdict.outcome == "failed" for verdict in verdicts):
        return []
    open_ = f"{len(undecided)} undecided"
    if not any(verdict.outcome == "green" for verdict in verdicts):
        return [f"not green: nothing failed and nothing was decided; {open_}"]
    if not undecided:
        return []
    beyond = sum(bool(verdict.evidence.get("beyond_limit")) for verdict in undecided)
    if beyond:
        return [f"not green: nothing failed; {open_}, of which {beyond} measured beyond the limit"]
    if strict:
        return [f"not green: nothing failed; {open_}, which --strict-inconclusive does not let pass"]
    return [
        f"green: nothing failed; {open_}, none measured beyond its limit (not green with --strict-inconclusive)"
    ]


def table(verdicts: Sequence[Verdict]) -> Table:
    """The summary table; its colours show where the console has them."""
    found = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("verdict", "case", "metric"):
        found.add_column(heading, no_wrap=True)
    for heading in ("now", "baseline", "change"):
        found.add_column(heading, justify="right", no_wrap=True)
    outcome = {verdict.kind: verdict.outcome for verdict in verdicts}
    for row in rows(verdicts):
        kind = Text(row.kind, style=_STYLES[outcome[row.kind]])
        cells = (row.subject, row.metric, row.now, row.reference, row.change)
        found.add_row(kind, *map(Text, cells))
    return found


def _lines(content: Table, width: int, color: bool) -> list[str]:
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=max(width, MIN_WIDTH),
        force_terminal=color,
        no_color=not color,
        color_system="standard" if color else None,
        highlight=False,
    )
    console.print(content)
    return [line.rstrip() for line in buffer.getvalue().splitlines()]
