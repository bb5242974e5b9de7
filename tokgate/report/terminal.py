"""The end of a terminal run: table, counts, what does not apply, where the results are."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokgate.report.rows import counts, rows
from tokgate.verdict import Verdict

_STYLES = {"green": "green", "failed": "bold red", "undecided": "yellow", "neutral": "dim"}


def summary_lines(
    verdicts: Sequence[Verdict],
    *,
    not_applicable: Mapping[str, str],
    folder: Path,
    width: int,
    color: bool,
) -> list[str]:
    """Lines of the summary.

    Args:
        verdicts: all of the run.
        not_applicable: profile -> why it cannot exist on this engine.
        folder: of the results.
        width: of the terminal, in columns.
        color: whether to print ANSI colours.
    """
    lines = _table(verdicts, width, color) if verdicts else ["no verdict was reached"]
    lines += [f"not applicable: {name}: {reason}" for name, reason in not_applicable.items()]
    if verdicts:
        lines.append(counts(verdicts))
    lines.append(f"results: {folder}")
    return lines


def _table(verdicts: Sequence[Verdict], width: int, color: bool) -> list[str]:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim" if color else "")
    for heading in ("verdict", "case", "metric"):
        table.add_column(heading, no_wrap=True)
    for heading in ("now", "baseline", "change"):
        table.add_column(heading, justify="right", no_wrap=True)
    outcome = {verdict.kind: verdict.outcome for verdict in verdicts}
    for row in rows(verdicts):
        table.add_row(
            f"[{_STYLES[outcome[row.kind]]}]{row.kind}[/]" if color else str(row.kind),
            row.subject.replace("[", r"\["),
            row.metric,
            row.now,
            row.reference,
            row.change,
        )
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=max(width, 120), force_terminal=color, color_system="standard", highlight=False
    )
    console.print(table)
    return [line.rstrip() for line in buffer.getvalue().splitlines()]
