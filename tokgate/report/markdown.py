"""A run as Markdown: table first, then every message that is not green, then the ranks of every start."""

from __future__ import annotations

from collections.abc import Sequence

from tokgate.report import ranks
from tokgate.report.rows import counts, rows
from tokgate.report.speculation_table import markdown, speculation_rows
from tokgate.verdict import Verdict


def report(header: Sequence[str], verdicts: Sequence[Verdict], *, interrupted: str = "") -> str:
    """The report of a run.

    Args:
        header: lines that say what was run, on what.
        verdicts: all of the run.
        interrupted: what cut the run short, if anything did; it stands in the first line.
    """
    lines = [
        f"# tokgate: {interrupted}" if interrupted else "# tokgate",
        "",
        *(f"{line}  " for line in header),
        "",
    ]
    if not verdicts:
        return "\n".join([*lines, "No verdict was reached.", ""])
    lines += [f"**{counts(verdicts)}**", ""]
    lines += [
        "| verdict | case | metric | now | baseline | change |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row.kind} | {row.subject} | {row.metric} | {row.now} | {row.reference} | {row.change} |"
        for row in rows(verdicts)
    ]
    lines += markdown(speculation_rows(verdicts))
    for verdict in verdicts:
        if verdict.outcome != "green":
            lines += ["", "```", verdict.text(), "```"]
    if tables := ranks.rank_tables(verdicts):
        lines += ["", "## Ranks, versions and environment", ""]
        for table in tables:
            lines += ranks.markdown(table)
    return "\n".join([*lines, ""])
