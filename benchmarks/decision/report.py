"""The tables of the decision benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from benchmarks.decision.rules import Ends

BEGIN, END = "<!-- benchmarks.decision: begin -->", "<!-- benchmarks.decision: end -->"
OURS, OURS_LOOSE = "tokgate, 0.01/40", "tokgate, 0.01"
SPRT = {OURS: "SPRT, scatter known, 0.01/40", OURS_LOOSE: "SPRT, scatter known, 0.01"}
TYPICAL, NOISIER = "typical", "typical, 1.5 x calibration"


@dataclass(frozen=True, slots=True)
class Cell:
    """Counts of one rule on one scenario and true change."""

    series: int = 0
    alarms: int = 0
    clears: int = 0
    blocks: float = 0.0
    covered: int = 0
    intervals: int = 0

    def plus(self, end: Ends, truth: float) -> Cell:
        """With one more batch counted."""
        size = len(end.alarm)
        covered = intervals = 0
        if end.low is not None and end.high is not None:
            intervals = size
            covered = int(np.sum((end.low <= truth) & (truth <= end.high)))
        return Cell(
            self.series + size,
            self.alarms + int(end.alarm.sum()),
            self.clears + int(end.clear.sum()),
            self.blocks + float(end.blocks.sum()),
            self.covered + covered,
            self.intervals + intervals,
        )

    @property
    def rate(self) -> float:
        """Share of alarms."""
        return self.alarms / self.series

    @property
    def rate_at_most(self) -> float:
        """Upper 95 % bound (one-sided, Clopper-Pearson) of the share of alarms."""
        return (
            float(betaincinv(self.alarms + 1, self.series - self.alarms, 0.95))
            if self.alarms < self.series
            else 1.0
        )

    @property
    def cost(self) -> float:
        """Mean blocks."""
        return self.blocks / self.series

    @property
    def undecided(self) -> float:
        return 1 - (self.alarms + self.clears) / self.series


Results = Mapping[str, Mapping[tuple[str, float], Cell]]


@dataclass(frozen=True, slots=True)
class Target:
    """One row of the list of aims."""

    what: str
    wanted: str
    got: str
    met: bool


def any_of(rate: float, verdicts: int) -> float:
    """Chance that at least one of so many verdicts alarms falsely."""
    return float(1 - (1 - rate) ** verdicts)


def targets(results: Results, alpha: float, verdicts: int) -> list[Target]:
    """The aims of issue 6 and what was measured."""
    rows = []
    for name, least in ((TYPICAL, 0.95), (NOISIER, 0.90)):
        cell = results[name][OURS, 0.0]
        suite, most = any_of(cell.rate, verdicts), any_of(cell.rate_at_most, verdicts)
        rows.append(
            Target(
                f"{name}: any false alarm in {verdicts} verdicts",
                f"<= {100 * alpha:g} %",
                f"{100 * suite:.2f} % (at most {100 * most:.2f} %; {cell.alarms} of {cell.series})",
                suite <= alpha,
            )
        )
        cell = results[name][OURS, -0.03]
        rows.append(
            Target(
                f"{name}: -3 % found",
                f">= {100 * least:.0f} %",
                f"{100 * cell.rate:.1f} %",
                cell.rate >= least,
            )
        )
        cell = results[name][OURS, -0.10]
        rows.append(
            Target(
                f"{name}: -10 % found",
                "always",
                f"{100 * cell.rate:.3f} % ({cell.series - cell.alarms} of {cell.series} missed)",
                cell.alarms == cell.series,
            )
        )
    for name in (OURS, OURS_LOOSE):
        for change, most in ((0.0, 1.35), (-0.03, 1.85)):
            ratio = results[TYPICAL][name, change].cost / results[TYPICAL][SPRT[name], change].cost
            rows.append(
                Target(
                    f"typical: cost of {name} at {_change(change)}, against the SPRT",
                    f"<= {most} x",
                    f"{ratio:.2f} x ({results[TYPICAL][name, change].cost:.2f} blocks)",
                    ratio <= most,
                )
            )
    return rows


def _change(change: float) -> str:
    return f"{100 * change:+.0f} %" if change else "no change"


def page(
    results: Results,
    stored: Sequence[tuple[str, int, float, dict[str, float]]],
    alarms: int,
    limit: float,
    alpha: float,
    verdicts: int,
) -> str:
    """All tables as Markdown."""
    lines = [
        f"Made by `python -m benchmarks.decision` ({alarms} series without a change at typical noise). "
        f"Limit {100 * limit:g} %, beta 5 %, at most 40 blocks, four runs an arm.",
        "",
        "### Aims",
        "",
        "| aim | wanted | measured | met |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row.what} | {row.wanted} | {row.got} | {'yes' if row.met else '**no**'} |"
        for row in targets(results, alpha, verdicts)
    ]
    lines += [
        "",
        "### Every rule on the same series",
        "",
        f"False alarm: share of verdicts; *suite*: any in {verdicts}. *Blocks*: mean, no change / at -3 %. "
        "*Open*: undecided after the last block, with no change / at -3 %; the other rules cannot say so.",
        "*Covered*: how often the 95 % interval printed at the stop holds the truth, no change / at -3 %.",
    ]
    for name, cells in results.items():
        lines += [
            "",
            f"**{name}**",
            "",
            "| rule | false alarm | suite | -3 % found | -10 % found | blocks | open | covered |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for rule in dict.fromkeys(rule for rule, _ in cells):
            null, three, ten = (cells[rule, change] for change in (0.0, -0.03, -0.10))
            covered = (
                f"{100 * null.covered / null.intervals:.0f} / {100 * three.covered / three.intervals:.0f} %"
                if null.intervals
                else ""
            )
            lines.append(
                f"| {rule} | {_percent(null)} | {100 * any_of(null.rate, verdicts):.1f} % "
                f"| {100 * three.rate:.1f} % | {100 * ten.rate:.1f} % | {null.cost:.2f} / {three.cost:.2f} "
                f"| {100 * null.undecided:.1f} / {100 * three.undecided:.1f} % | {covered} |"
            )
    lines += [
        "",
        "### Stored sessions, another day (alpha 1 % a verdict)",
        "",
        "Launches differ by 1 %, runs by 2 %; five runs a session.",
        "",
        "| noise | sessions | true change | REGRESSION | INCONCLUSIVE | PASS |",
        "|---|---|---|---|---|---|",
    ]
    for label, sessions, change, shares in stored:
        lines.append(
            f"| {label} | {sessions} | {_change(change)} | "
            + " | ".join(f"{100 * shares[kind]:.1f} %" for kind in ("REGRESSION", "INCONCLUSIVE", "PASS"))
            + " |"
        )
    return "\n".join(lines)


def _percent(cell: Cell) -> str:
    if cell.alarms:
        return f"{100 * cell.rate:.3g} %"
    return f"0 (< {100 * cell.rate_at_most:.2g} %)"
