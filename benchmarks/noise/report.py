"""Tables and plots of the noise study."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.noise.conditions import PLANTED
from benchmarks.noise.features import (
    DISTURBED,
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
    cpu_speed,
    episodes,
    read_runs,
    spearman,
)
from benchmarks.page import put
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


CANARIES = (("the scheduler's CPU", "own_cpu_ms"), ("a spare CPU", "canary_cpu_ms"))

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


CONDITION_HEAD = (
    "condition",
    "runs",
    "tok/s",
    "sd %",
    "worst, % below best",
    "median step ms",
    "in stalls %",
    "slow windows %",
)


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


def table(out: Path) -> str:
    """At most 25 lines, for the end of a study."""
    lines = []
    for name, runs in models(out).items():
        if not runs:
            continue
        lines.append(
            f"{name}: {len(runs)} runs, best {best(runs):.0f} tok/s; {' | '.join(CONDITION_HEAD[1:])}"
        )
        lines += [f"  {row[0]:<15} {' | '.join(row[1:])}" for row in conditions(runs)]
        left = natural(runs)
        telling = [row for row in correlations(left) if "follows the speed" not in row[0]]
        found = [f"{row[0]} {row[2]:+.2f}" for row in telling[:4]]
        lines.append(f"  tok/s goes with: {'; '.join(found)}")
        *rows, whole = causes(left)
        lines.append(
            f"  a cause named for {_of(whole.slow)} slow runs that were looked at, and {_of(whole.quick)} quick ones"
        )
        lines.append(
            "    "
            + "; ".join(f"{c.words}: {_of(c.slow)} slow, {_of(c.quick)} quick" for c in rows if c.slow[0])
        )
        lines.append("  with the step at the moment: " + "; ".join(f"{n} {v}" for n, v in moments(left)))
    return "\n".join(lines[:25])


def moments(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What goes with the step at the same moment, within runs."""
    found = {name: at_the_moment(runs, key) for name, key in MOMENTS.items()}
    return [(name.strip(), "not known" if v is None else f"{v:+.2f}") for name, v in found.items()]


def write(outs: Sequence[Path], docs: Path) -> None:
    """Fill the marked part of docs/explanation/noise.md from one study or several, and draw its plot."""
    parts: list[str] = []
    drawn: dict[str, list[Run]] = {}
    for out in outs:
        told = json.loads((out / "study.json").read_text(encoding="utf-8"))["models"]
        for name, runs in models(out).items():
            if runs:
                parts.append(_markdown(f"{out.name}: {name}", runs, told.get(name, {})))
                drawn[f"{out.name}: {name}"] = runs
        print(table(out))
    begin, end = "<!-- benchmarks.noise: begin -->", "<!-- benchmarks.noise: end -->"
    put(docs / "noise.md", begin, end, "\n".join(parts).strip())
    _plot(drawn, docs / "noise.png")


def keep(out: Path, kept: Path) -> None:
    """A study small enough to be committed: gzipped, without the load of every CPU at every look."""
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(out / "study.json", kept / "study.json")
    for path in sorted(out.glob("runs-*.jsonl")):
        lines = []
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                row = json.loads(line)
                row["samples"] = [{k: v for k, v in look.items() if k != "busy"} for look in row["samples"]]
                lines.append(json.dumps(row, separators=(",", ":")) + "\n")
        (kept / f"{path.name}.gz").write_bytes(gzip.compress("".join(lines).encode(), 9, mtime=0))


def _markdown(name: str, runs: Sequence[Run], told: dict[str, Any]) -> str:
    left = natural(runs)
    lines = [
        f"### {name}: {len(runs)} runs of one launch",
        "",
        _row(CONDITION_HEAD),
        _row(["---"] * len(CONDITION_HEAD)),
    ]
    lines += [_row(row) for row in conditions(runs)]
    lines += [
        "",
        "| measured beside the run | runs | rank correlation with tok/s | median, quick runs | median, slow runs |",
    ]
    lines.append("|---|---|---|---|---|")
    lines += [
        f"| {n} | {count} | {rho:+.2f} | {_figure(q)} | {_figure(s)} |"
        for n, count, rho, q, s in correlations(left)
    ]
    looks = [(what, value) for what, value in moments(left) if value != "not known"]
    if looks:
        told_looks = ", ".join(f"{what} {value}" for what, value in looks)
        lines += ["", f"Rank correlation with the step at the same moment, within runs: {told_looks}."]
    explained = _explained(left)
    if explained is not None:
        told_share = f"{100 * explained:.0f} % of the variance of ln(tok/s) between runs"
        lines += ["", f"The fixed work on the scheduler's CPU alone explains {told_share}."]
    speeds = [(who, cpu_speed(runs, key)) for who, key in CANARIES]
    lines += [
        "",
        *(
            f"Fixed work on {who}: {100 * speed.disturbed:.0f} % of {speed.looks} looks took more than {DISTURBED:g} x "
            f"their quickest tenth, in the middle {speed.factor:.2f} x."
            for who, speed in speeds
            if speed is not None
        ),
    ]
    slow_times, share = episodes(left)
    lines += ["", f"Slow episodes, in time, whatever was measured: {100 * share:.0f} % of all windows."]
    if slow_times:
        lines += ["", "| seconds | step, x undisturbed | runs | conditions |", "|---|---|---|---|"]
        lines += [
            f"| {e.seconds:.1f} | {e.factor:.2f} | {e.runs} | {', '.join(e.conditions)} |" for e in slow_times
        ]
    if len(runs) >= 8:
        told_orders = ", ".join(f"{order} {value:.1f} %" for order, value in orders(left))
        lines += [
            "",
            f"Scatter of an A/A block made of eight of these runs in a row, by order: {told_orders}.",
        ]
    absent = [
        f"{what}: {why}" for key in ("left_out", "perf_refused") for what, why in told.get(key, {}).items()
    ]
    if absent:
        lines += ["", f"Not measured: {'; '.join(absent)}."]
    lines += ["", "| cause | slow runs that have it | quick runs that have it |", "|---|---|---|"]
    lines += [f"| {c.words} | {_of(c.slow)} | {_of(c.quick)} |" for c in causes(left)]
    lines.append("")
    return "\n".join(lines)


def _of(pair: tuple[int, int]) -> str:
    return f"{pair[0]} of {pair[1]}"


def _figure(value: float) -> str:
    return "-" if value != value else f"{value:.4g}"


def _explained(runs: Sequence[Run]) -> float | None:
    """Share of the variance of ln(tok/s) that ln(CPU time of the fixed work) explains between runs."""
    pairs = [(r.tok_s, r.facts[OWN_WORK]) for r in runs if OWN_WORK in r.facts]
    if len(pairs) < 5:
        return None
    return float(np.corrcoef(np.log(np.array(pairs)).T)[0, 1] ** 2)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plot(found: dict[str, list[Run]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(found), 3, figsize=(13, 3.6 * len(found)), squeeze=False)
    for row, (name, runs) in zip(axes, found.items(), strict=True):
        top = best(runs)
        for condition in dict.fromkeys(r.condition for r in runs):
            mine = [r for r in runs if r.condition == condition]
            row[0].plot([r.number for r in mine], [r.tok_s / top for r in mine], "o", ms=4, label=condition)
        row[0].set(title=f"{name}: speed of each run, best = 1", xlabel="run")
        row[0].legend(fontsize=6)
        start = min(float(r.windows_t_s[0]) for r in runs)
        for number, condition in enumerate(dict.fromkeys(r.condition for r in runs)):
            mine = [r for r in runs if r.condition == condition]
            t = np.concatenate([r.windows_t_s for r in mine]) - start
            row[1].plot(t, np.concatenate([r.windows_ms for r in mine]), ".", ms=3, color=f"C{number}")
        row[1].set(title="median step of 64 in a row, ms", xlabel="s since the first run")
        telling = [c for c in correlations(runs) if "follows the speed" not in c[0]]
        for fact, *_ in telling[:1]:
            have = [r for r in runs if fact in r.facts]
            row[2].plot([r.facts[fact] for r in have], [r.tok_s / top for r in have], "o", ms=4)
            row[2].set(title="speed against what goes with it most", xlabel=fact)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)
