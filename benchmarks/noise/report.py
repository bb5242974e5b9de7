"""Tables and plots of the noise study."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.noise.features import DISTURBED, Run, cpu_speed, episodes
from benchmarks.noise.findings import (
    best,
    causes,
    conditions,
    correlations,
    explained,
    models,
    moments,
    natural,
    orders,
)
from benchmarks.page import put

CANARIES = (("the scheduler's CPU", "own_cpu_ms"), ("a spare CPU", "canary_cpu_ms"))

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
    share_explained = explained(left)
    if share_explained is not None:
        told_share = f"{100 * share_explained:.0f} % of the variance of ln(tok/s) between runs"
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
