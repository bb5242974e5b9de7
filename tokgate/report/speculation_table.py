"""The table of speculation: every speculative case of a run with what its speed is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokgate.verdict import Verdict

HEADINGS = (
    "speculation",
    "tok/s",
    "without",
    "speed-up",
    "accept length",
    "break-even",
    "cycle ms",
    "in kernels",
    "verify/s",
    "graphs a cycle",
)
LAUNCHES = "graph launches"


def speculation_rows(verdicts: Iterable[Verdict]) -> list[tuple[str, ...]]:
    """One row a case that was held against its reference, in the order of the run; cells as text.

    A figure that was not measured (``in kernels`` and ``graphs a cycle`` need a trace) is ``-``.
    """
    found = list(verdicts)
    launched = {
        verdict.subject: cycles["launches_per_step"]
        for verdict in found
        if verdict.evidence.get("metric") == LAUNCHES
        and isinstance(cycles := verdict.evidence.get("cycles"), dict)
    }
    return [
        _row(verdict, launched.get(verdict.subject))
        for verdict in found
        if "break_even_accept_length" in verdict.evidence
    ]


def _row(verdict: Verdict, launches: object) -> tuple[str, ...]:
    told = verdict.evidence
    cycles = told.get("cycles")
    cycle_ms = told.get("cycle_ms")
    return (
        verdict.subject,
        _figure(told.get("now")),
        _figure(told.get("reference")),
        f"{_decimals(told.get('ratio'))}x",
        _decimals(told.get("accept_length")),
        _decimals(told.get("break_even_accept_length")),
        _figure(cycle_ms),
        _figure(cycles.get("busy_ms")) if isinstance(cycles, dict) else "-",
        _figure(1e3 / cycle_ms) if isinstance(cycle_ms, (int, float)) and cycle_ms > 0 else "-",
        str(launches) if isinstance(launches, int) else "-",
    )


def markdown(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The table as Markdown; nothing without rows."""
    if not rows:
        return []
    lines = ["", f"| {' | '.join(HEADINGS)} |", "| --- |" + " ---: |" * (len(HEADINGS) - 1)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def plain(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The table in columns; nothing without rows."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in (HEADINGS, *rows)) for i in range(len(HEADINGS))]
    lines = [
        "  ".join(
            (row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)))
        )
        for row in (HEADINGS, *rows)
    ]
    return ["", *lines, ""]


def _figure(value: object) -> str:
    if not isinstance(value, (int, float)):
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _decimals(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, (int, float)) else "-"
