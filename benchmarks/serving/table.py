"""The table of ``benchmarks.serving``: a column a cell, three rows a metric.

    python -m benchmarks.serving.table serving.json [ROUND]

prints it again from what was kept: medians, or one round by itself.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.serving.peer import METRICS

TOOLS = ("tokgate", "tokgate's data, their way", "bench_serving")


def valid(cell: Mapping[str, Any]) -> list[int]:
    """Rounds in which tokgate's run is not void."""
    return [i for i, run in enumerate(cell["tokgate"]) if not run["void"]]


def medians(cell: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """tool -> metric -> median over the rounds; void runs of tokgate are left out while there are others."""
    kept = valid(cell) or range(len(cell["tokgate"]))
    rows = {
        TOOLS[0]: [cell["tokgate"][i] for i in kept],
        TOOLS[1]: [cell["as_theirs"][i] for i in kept],
        TOOLS[2]: cell["bench_serving"],
    }
    return {
        tool: {name: statistics.median(v) for name in METRICS if (v := [r[name] for r in runs if name in r])}
        for tool, runs in rows.items()
    }


def table(cells: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The lines of the table, in Markdown: a column a cell, three rows a metric."""
    found = {key: medians(cell) for key, cell in cells.items()}
    void = {key for key, cell in cells.items() if not valid(cell)}
    titles = (f"{key} (VOID)" if key in void else key for key in found)
    lines = ["| | | " + " | ".join(titles) + " |", "|---|---|" + "---:|" * len(found)]
    for name in METRICS:
        for tool in TOOLS:
            values = [m[tool].get(name) for m in found.values()]
            if any(value is not None for value in values):
                shown = " | ".join("-" if v is None else f"{v:.4g}" for v in values)
                lines.append(f"| {name if tool == TOOLS[0] else ''} | {tool} | {shown} |")
    return lines


def void_notes(cells: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How many of tokgate's runs are void, and one of the causes, a line a cell that has any."""
    lines = []
    for key, cell in cells.items():
        causes = {reason for run in cell["tokgate"] for reason in run["void"]}
        if causes:
            runs = len(cell["tokgate"])
            lines.append(f"{key}: {runs - len(valid(cell))} of {runs} runs void: {min(causes)}")
    return lines


def one_round(cells: Mapping[str, Mapping[str, Any]], number: int) -> dict[str, dict[str, Any]]:
    """The cells with what was seen in one round, counted from 1."""
    return {
        key: {tool: runs[number - 1 : number] for tool, runs in cell.items()} for key, cell in cells.items()
    }


if __name__ == "__main__":
    kept = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["cells"]
    print("\n".join(table(one_round(kept, int(sys.argv[2])) if len(sys.argv) > 2 else kept)))
