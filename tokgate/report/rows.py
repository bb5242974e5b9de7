"""The rows of the summary table: one a verdict, the same in every format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tokgate.verdict import Kind, Verdict

MAIN_METRICS = ("output_tok_s", "decode_tok_s", "startup_s", "accept_length", "attention mode", "cuda graphs")
"""Metrics that always have a row; another metric has one when it failed, and is counted otherwise."""

_ORDER = {kind: place for place, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True)
class Row:
    """One verdict as cells of text; a figure that does not exist is ``-``."""

    kind: Kind
    subject: str
    metric: str
    now: str
    reference: str
    change: str


def rows(verdicts: Iterable[Verdict]) -> list[Row]:
    """Rows of all that failed and of the main metrics; worst first, else in the order of the run."""
    shown = [v for v in verdicts if v.outcome == "failed" or _is_main(v)]
    return [_row(verdict) for verdict in sorted(shown, key=lambda v: _ORDER[v.kind])]


def _is_main(verdict: Verdict) -> bool:
    return verdict.outcome != "neutral" and verdict.evidence.get("metric") in MAIN_METRICS


def counts(verdicts: Iterable[Verdict]) -> str:
    """``2 NET_LOSS, 3 INCONCLUSIVE, 12 PASS``, worst first."""
    found: dict[Kind, int] = {}
    for verdict in verdicts:
        found[verdict.kind] = found.get(verdict.kind, 0) + 1
    return ", ".join(f"{found[kind]} {kind}" for kind in Kind if kind in found)


def _row(verdict: Verdict) -> Row:
    figures = verdict.evidence
    unit = str(figures.get("unit", ""))
    return Row(
        kind=verdict.kind,
        subject=verdict.subject,
        metric=str(figures.get("metric", "-")),
        now=_figure(figures.get("now"), unit),
        reference=_figure(figures.get("reference"), unit),
        change=_signed(figures.get("change_percent")),
    )


def _figure(value: object, unit: str) -> str:
    if not isinstance(value, (int, float)):
        return "-"
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {unit}".strip()


def _signed(percent: object) -> str:
    return f"{percent:+.1f} %" if isinstance(percent, (int, float)) else "-"
