"""Findings of the noise study: what its runs say, as figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.noise.conditions import PLANTED
from benchmarks.noise.features import (
    GATES_OWN,
    GOOD_QUANTILE,
    OWN_MEMORY,
    OWN_WORK,
    SIBLING,
    SLOW,
    SPARE_MEMORY,
    SPARE_WORK,
    Run,
    at_the_moment,
    read_runs,
    spearman,
)
from tokgate.analysis.blocks import block

CAUSES: tuple[tuple[str, str, Callable[[float, float], bool]], ...] = (
    ("steal, % of CPU time wanted", "steal over 2 % of the CPU time wanted", lambda v, best: v > 2),
    ("scheduler: wait for a CPU, % of time", "scheduler waited over 2 %", lambda v, best: v > 2),
    (OWN_WORK, "fixed work on the scheduler's CPU took 5 % longer", lambda v, best: v > 1.05 * best),
    (
        GATES_OWN,
        "`slow_cpu` of the gate: 1.1 x that on the quickest CPUs, GPU busy under 90 %",
        lambda v, best: v > 0,
    ),
    (OWN_MEMORY, "memory reads on the scheduler's CPU took 20 % longer", lambda v, best: v > 1.2 * best),
    (SPARE_WORK, "fixed work on a spare CPU took 5 % longer", lambda v, best: v > 1.05 * best),
    (SPARE_MEMORY, "memory reads on a spare CPU took 20 % longer", lambda v, best: v > 1.2 * best),
    (SIBLING, "the sibling of the scheduler's CPU was busy over 20 %", lambda v, best: v > 20),
    ("scheduler's CPU: softirq, %", "softirqs took over 2 % of the scheduler's CPU", lambda v, best: v > 2),
    ("scheduler's CPU: steal, %", "steal over 2 % of the scheduler's CPU", lambda v, best: v > 2),
    ("GPU: ms of the NVML queries", "NVML answered 20 % slower", lambda v, best: v > 1.2 * best),
    ("scheduler: GHz", "CPU clock 3 % down", lambda v, best: v < 0.97 * best),
    ("scheduler: instructions a cycle", "instructions a cycle 5 % down", lambda v, best: v < 0.95 * best),
    ("client: lag p99, ms", "client lag over 1 ms", lambda v, best: v > 1),
    ("GPU: SM MHz", "GPU clock 2 % down", lambda v, best: v < 0.98 * best),
    ("GPU: looks with a throttle reason, %", "GPU throttled", lambda v, best: v > 10),
)
"""Fact, cause, and whether its value (against the median of the quick runs) names it."""


def models(out: Path) -> dict[str, list[Run]]:
    """Runs by model, of what a study wrote."""
    paths = sorted(out.glob("runs-*.jsonl*"))
    return {path.name.split(".")[0].removeprefix("runs-"): read_runs(path) for path in paths}


MOMENTS = {
    "fixed work on the scheduler's CPU": "own_cpu_ms",
    "memory reads there": "own_memory_ms",
    "fixed work on a spare CPU": "canary_cpu_ms",
    "memory reads there ": "canary_memory_ms",
    "sibling busy": "sibling_busy",
    "NVML's answer": "nvml_ms",
}
"""Looks whose rank correlation with the step at the same moment, within runs, is told."""


def natural(runs: Sequence[Run]) -> list[Run]:
    """Runs in which nothing was planted."""
    return [run for run in runs if run.condition != PLANTED]


def best(runs: Sequence[Run]) -> float:
    """The speed that counts as undisturbed."""
    return float(np.quantile([run.tok_s for run in runs], GOOD_QUANTILE))


def split(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Slow runs and the others."""
    bound = (1 - SLOW) * best(runs)
    return [r for r in runs if r.tok_s < bound], [r for r in runs if r.tok_s >= bound]


def conditions(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """One row a condition."""
    top = best(runs)
    quick = float(np.quantile(np.concatenate([r.windows_ms for r in runs]), 0.1))
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(r.condition for r in sorted(runs, key=lambda r: r.condition)):
        mine = [r for r in runs if r.condition == name]
        speeds = np.array([r.tok_s for r in mine])
        level = np.array([r.level_ms for r in mine])
        rows.append(
            (
                name,
                str(len(mine)),
                f"{speeds.mean():.0f}",
                f"{100 * speeds.std(ddof=1) / speeds.mean():.1f}" if len(mine) > 1 else "",
                f"{100 * (1 - speeds.min() / top):.0f}",
                f"{level.min():.2f}..{level.max():.2f}",
                f"{100 * np.mean([r.lost for r in mine]):.1f}",
                f"{100 * np.mean(np.concatenate([r.windows_ms for r in mine]) > 1.15 * quick):.0f}",
            )
        )
    return rows


def correlations(runs: Sequence[Run]) -> list[tuple[str, int, float, float, float]]:
    """Fact, runs, rank correlation with tok/s, medians of quick and of slow runs; strongest first."""
    slow, quick = split(runs)
    rows = []
    for name in dict.fromkeys(fact for run in runs for fact in run.facts):
        have = [run for run in runs if name in run.facts]
        rho = spearman([r.tok_s for r in have], [r.facts[name] for r in have]) if len(have) > 4 else None
        if rho is not None:
            rows.append((name, len(have), rho, _middle(quick, name), _middle(slow, name)))
    return sorted(rows, key=lambda row: -abs(row[2]))


def orders(runs: Sequence[Run]) -> list[tuple[str, float]]:
    """Root mean square of an A/A block difference, %, made of eight runs in a row, by how arms share them."""
    speeds = [run.tok_s for run in sorted(runs, key=lambda r: r.number)]
    found = []
    for order in ("AAAABBBB", "ABABABAB", "ABBABAAB"):
        differences = []
        for start in range(len(speeds) - len(order) + 1):
            sides: dict[str, list[float]] = {"A": [], "B": []}
            for name, speed in zip(order, speeds[start:], strict=False):
                sides[name].append(speed)
            differences.append(block(sides["A"], sides["B"], "higher").difference)
        found.append((order, 100 * float(np.sqrt(np.mean(np.square(differences))))))
    return found


def _middle(runs: Sequence[Run], fact: str) -> float:
    values = [run.facts[fact] for run in runs if fact in run.facts]
    return float(np.median(values)) if values else float("nan")


@dataclass(frozen=True, slots=True)
class Cause:
    """How often a cause was there, of the runs in which it was looked for.

    Attributes:
        words: what it is.
        slow, quick: (runs that have it, runs in which it was looked for).
    """

    words: str
    slow: tuple[int, int]
    quick: tuple[int, int]


def causes(runs: Sequence[Run]) -> list[Cause]:
    """Every cause that some run looked for; last any of them, of the runs that had a canary under the scheduler (where
    the study has one: the others could not be named)."""
    slow, quick = split(runs)
    found: list[Cause] = []
    named: set[int] = set()
    for fact, words, test in CAUSES:
        known = [r.facts[fact] for r in quick if fact in r.facts]
        if not known:
            continue
        middle = float(np.median(known))
        counts = []
        for members in (slow, quick):
            looked = [r for r in members if fact in r.facts]
            hits = {r.number for r in looked if test(r.facts[fact], middle)}
            named |= hits
            counts.append((len(hits), len(looked)))
        found.append(Cause(words, counts[0], counts[1]))
    has_canary = any(OWN_WORK in r.facts for r in runs)
    whole = [[r for r in group if OWN_WORK in r.facts or not has_canary] for group in (slow, quick)]
    totals = [(len({r.number for r in group} & named), len(group)) for group in whole]
    return [*found, Cause("any", totals[0], totals[1])]


def moments(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What goes with the step at the same moment, within runs."""
    found = {name: at_the_moment(runs, key) for name, key in MOMENTS.items()}
    return [(name.strip(), "not known" if v is None else f"{v:+.2f}") for name, v in found.items()]


def explained(runs: Sequence[Run]) -> float | None:
    """Share of the variance of ln(tok/s) that ln(CPU time of the fixed work) explains between runs."""
    pairs = [(r.tok_s, r.facts[OWN_WORK]) for r in runs if OWN_WORK in r.facts]
    if len(pairs) < 5:
        return None
    return float(np.corrcoef(np.log(np.array(pairs)).T)[0, 1] ** 2)
