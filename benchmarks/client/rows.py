"""Rows of a benchmark: judged against their limits, settled by repetition, shown as a table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.page import put

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "client.md"
BEGIN, END = "<!-- client: begin -->", "<!-- client: end -->"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``value`` is ``None`` when ``absent``; without ``limit`` it informs only."""

    name: str
    value: float | None
    unit: str
    limit: float | None = None
    note: str = ""
    absent: str = "not run"

    @property
    def missed(self) -> bool:
        """Above its limit."""
        return self.limit is not None and self.value is not None and self.value > self.limit


def settled(experiment: Callable[[], list[Row]]) -> list[Row]:
    """Run an experiment; when a row is missed, twice more, and take each row's median."""
    rows = experiment()
    if not any(row.missed for row in rows):
        return rows
    again = [rows, experiment(), experiment()]
    found = []
    for same in zip(*again, strict=True):
        values = [row.value for row in same if row.value is not None]
        row = same[0]
        if values:
            note = f"median of {len(values)}; {row.note}".rstrip("; ")
            row = Row(row.name, statistics.median(values), row.unit, row.limit, note)
        found.append(row)
    return found


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    width = max(len(row.name) for row in rows)
    lines = []
    for row in rows:
        value = row.absent if row.value is None else f"{row.value:.4g} {row.unit}"
        limit = "" if row.limit is None else f"<= {row.limit:g} {row.unit}"
        state = "" if row.limit is None or row.value is None else "MISSED" if row.missed else "ok"
        lines.append(f"{row.name:<{width}}  {value:>12}  {limit:<11}  {state:<6}  {row.note}".rstrip())
    return "\n".join(lines)


def document(rows: Sequence[Row], facts: str, today: str) -> None:
    """Put the rows into the page on the client."""
    lines = [f"{today}; {facts}", "", "| what | value | bound | |", "|---|---:|---|---|"]
    for row in rows:
        value = row.absent if row.value is None else f"{row.value:.4g} {row.unit}"
        bound = "" if row.limit is None else f"<= {row.limit:g} {row.unit}"
        missed = "MISSED; " if row.missed else ""
        lines.append(f"| {row.name} | {value} | {bound} | {(missed + row.note).rstrip('; ')} |")
    put(PAGE, BEGIN, END, "\n".join(lines))
