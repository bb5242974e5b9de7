"""What the gate's own counters say of slow runs: every run of gates and bumps on a real GPU.

::

    python -m benchmarks.noise --collect benchmarks/noise/gate-runs-NAME.json DIR...    # of their Samples
    python -m benchmarks.noise --gate-runs                                              # the page's table
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.page import put
from tokgate.config.gate import VoidBounds
from tokgate.load.sample import Sample, read_samples

LEAST = 3
"""Runs of a case: of fewer it cannot be said which are slow."""
COUNTERS = ("scheduler_cpu_slowdown", "gpu_busy_share")


def collect(out: Path, folders: Sequence[Path]) -> None:
    """Keep one row a run; those that lack the counters are left out."""
    rows = []
    for folder in folders:
        for place in sorted({path.parents[2] for path in folder.rglob("*.sample.json")}):
            rows += [
                _row(sample, str(place.relative_to(folder.parent)))
                for sample in read_samples(place)
                if set(COUNTERS) <= sample.contention.keys()
            ]
    text = "[\n" + ",\n".join(json.dumps(row) for row in sorted(rows, key=json.dumps)) + "\n]\n"
    out.write_text(text, encoding="utf-8")


def _row(sample: Sample, place: str) -> dict[str, Any]:
    who = sample.identity
    return {
        # Arms of a bump are one profile on several builds: their folders tell them apart.
        "case": f"{place}: {who.workload}[{who.profile}]",
        "model": who.model.partition("@")[0],
        "launch": who.launch,
        "run": who.run,
        "tok_s": round(sample.metrics["output_tok_s"], 2),
        **{name: round(sample.contention[name], 3) for name in COUNTERS},
        "void": [reason.cause for reason in (*sample.void, *sample.advisory)],
    }


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that the GPU bounds, or those whose GPU waits.

    Attributes:
        cases, runs: how many.
        slow: runs more than 5 % slower than the 90th percentile of their case.
        named: of these, those with ``slow_cpu``.
        other: of the rest of these, those with another cause.
        quick_named: of the other runs, those with ``slow_cpu``.
        explained: share of the variance of ln(tok/s) within cases that ln(slowdown of the CPU) explains.
    """

    cases: int
    runs: int
    slow: int
    named: int
    other: int
    quick_named: int
    explained: float


def groups(rows: Sequence[dict[str, Any]], bounds: VoidBounds | None = None) -> dict[str, Group]:
    """By whether the GPU was busy for 90 % of the time in the middle run of a case."""
    bounds = bounds or VoidBounds()
    cases: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    kinds: dict[str, list[list[dict[str, Any]]]] = {"the GPU waits": [], "the GPU is busy": []}
    for runs in cases.values():
        if len(runs) >= LEAST:
            busy = float(np.median([run["gpu_busy_share"] for run in runs]))
            kinds["the GPU waits" if busy < bounds.gpu_busy_share else "the GPU is busy"].append(runs)
    return {name: _group(found, bounds) for name, found in kinds.items() if found}


def _group(cases: Sequence[Sequence[dict[str, Any]]], bounds: VoidBounds) -> Group:
    slow: list[dict[str, Any]] = []
    quick: list[dict[str, Any]] = []
    speeds: list[float] = []
    slowdowns: list[float] = []
    for runs in cases:
        best = float(np.quantile([run["tok_s"] for run in runs], 0.9))
        for run in runs:
            (slow if run["tok_s"] < 0.95 * best else quick).append(run)
        for key, values in (("tok_s", speeds), ("scheduler_cpu_slowdown", slowdowns)):
            logs = np.log([run[key] for run in runs])
            values += list(logs - logs.mean())

    def named(run: dict[str, Any]) -> bool:
        waited = run["gpu_busy_share"] < bounds.gpu_busy_share
        return bool(waited and run["scheduler_cpu_slowdown"] > bounds.scheduler_cpu_slowdown)

    rest = [run for run in slow if not named(run)]
    return Group(
        cases=len(cases),
        runs=len(slow) + len(quick),
        slow=len(slow),
        named=len(slow) - len(rest),
        other=sum(bool(run["void"]) for run in rest),
        quick_named=sum(map(named, quick)),
        explained=float(np.corrcoef(speeds, slowdowns)[0, 1] ** 2),
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    head = (
        "cases in which",
        "cases",
        "runs",
        "more than 5 % slow",
        "of these: `slow_cpu`",
        "another cause",
        "of the others: `slow_cpu`",
        "variance of ln(tok/s) within cases that the CPU's slowdown explains",
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [
        f"| {name} | {g.cases} | {g.runs} | {g.slow} | {g.named} | {g.other} | {g.quick_named} of {g.runs - g.slow} | "
        f"{100 * g.explained:.0f} % |"
        for name, g in groups(rows).items()
    ]
    return "\n".join(lines)


def read(folder: Path) -> list[dict[str, Any]]:
    """All kept rows."""
    return [
        row for path in sorted(folder.glob("gate-runs-*.json")) for row in json.loads(path.read_text("utf-8"))
    ]


def write(folder: Path, page: Path) -> None:
    """Fill the page's marked part."""
    begin, end = "<!-- benchmarks.noise gates: begin -->", "<!-- benchmarks.noise gates: end -->"
    put(page, begin, end, table(read(folder)))
