"""A bump as a comment on a pull request: under 60 lines whatever happened, the table first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokgate.report.bump_record import HEADINGS, BumpReport, Difference, blocks_text, cells
from tokgate.report.rows import counts
from tokgate.verdict import Verdict

MARK = "<!-- tokgate bump -->"
"""First line: by it a workflow finds the comment to be updated."""

LINES_MAX = 59
ROWS_MAX = 20
MESSAGES_MAX = 4
MESSAGE_LINES = 4
HEADER_MAX = 4
DIFFERENCES_MAX = 12
REMARKS_MAX = 3


def comment(report: BumpReport) -> str:
    """The comment."""
    lines = [MARK, f"### tokgate: {report.verdict}: {report.title}", "", *_table(report), ""]
    lines.append(
        f"**{counts(report.verdicts) or 'no verdict was reached'}**; {blocks_text(report)}, "
        f"{report.took}, ended: {report.ended}"
    )
    lines += _messages(report)
    lines += [
        *_list("moved in the stack", _moved(report)),
        *_list("changed defaults", [_said(item) for item in report.defaults]),
        *_list("memory", [_said(item) for item in report.memory]),
    ]
    lines += [f"- {remark}" for remark in report.remarks[:REMARKS_MAX]]
    lines += ["", *(f"<sub>{line}</sub>  " for line in report.header[:HEADER_MAX])]
    last = [f"go on: `{report.again}`"] if report.again else []
    return "\n".join([*lines[: LINES_MAX - len(last)], *last]) + "\n"


def _table(report: BumpReport) -> list[str]:
    rows = report.ordered()
    lines = [f"| {' | '.join(HEADINGS)} |", "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    lines += [f"| {' | '.join(map(_cell, cells(verdict)))} |" for verdict in rows[:ROWS_MAX]]
    if len(rows) > ROWS_MAX:
        lines.append(f"| | {len(rows) - ROWS_MAX} more: {counts(rows[ROWS_MAX:])} | | | | | | |")
    return lines


def _cell(text: str) -> str:
    """On one line, without what would end the cell."""
    return " ".join(text.split()).replace("|", "/")


def _messages(report: BumpReport) -> list[str]:
    """What failed or is open, with the lines that say why."""
    loud = [v for v in report.ordered() if v.outcome in ("failed", "undecided")]
    if not loud:
        return []
    lines = ["", "```"]
    for verdict in loud[:MESSAGES_MAX]:
        lines += _message(verdict)
    if len(loud) > MESSAGES_MAX:
        lines.append(f"and {len(loud) - MESSAGES_MAX} more, in the report")
    return [*lines, "```"]


def _message(verdict: Verdict) -> list[str]:
    lines = verdict.text().splitlines()
    return [line[:200] for line in lines[:MESSAGE_LINES]]


def _moved(report: BumpReport) -> list[str]:
    found = [_said(item) for item in report.moved]
    if report.moved_others:
        found.append(f"{report.moved_others} other package{'s' if report.moved_others > 1 else ''}")
    return found + [f"not known ({line})" for line in report.moved_unknown]


def _list(title: str, items: Sequence[str]) -> list[str]:
    """One line, however many there are."""
    if not items:
        return ["", f"**{title}**: nothing"]
    shown = list(_shown(items))
    return ["", f"**{title}**: {'; '.join(shown)}"]


def _shown(items: Sequence[str]) -> Iterable[str]:
    yield from items[:DIFFERENCES_MAX]
    if len(items) > DIFFERENCES_MAX:
        yield f"{len(items) - DIFFERENCES_MAX} more"


def _said(item: Difference) -> str:
    where = f"{item.where}: " if item.where else ""
    if item.old is None:
        return f"{where}{item.what} {item.new} (new)"
    if item.new is None:
        return f"{where}{item.what} {item.old} (gone)"
    return f"{where}{item.what} {item.old} -> {item.new}"
