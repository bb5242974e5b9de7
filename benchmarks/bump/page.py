"""The recorded bumps of real SGLang as the tables of docs/explanation/bump.md.

python -m benchmarks.bump.page            # writes them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bump.record import CPU_RECORDS, RECORDS, ROOT, Bump, bumps, launches
from benchmarks.page import put

DOCUMENT = ROOT / "docs" / "explanation" / "bump.md"
BEGIN, END = "<!-- benchmarks.bump.page: begin -->", "<!-- benchmarks.bump.page: end -->"
CPU_BEGIN, CPU_END = "<!-- benchmarks.bump.page cpu: begin -->", "<!-- benchmarks.bump.page cpu: end -->"
HEAD, RULE = (
    "| verdict | case | metric | old | new | change (95 % CI), or what was found |",
    "|---|---|---|---:|---:|---|",
)
TESTED = "tests judge each verdict again from its runs."


def on_gpu(folder: Path = RECORDS) -> str:
    """What was measured on H200s: a table of verdicts for each record, and every launch."""
    known = dict(launches(folder))
    lines = [f"Made by `python -m benchmarks.bump.page` from `tests/assets/h200-bump/`; {TESTED}"]
    for name, of_record in groupby(bumps(folder), key=lambda bump: bump.record):
        group = list(of_record)
        lines += [
            "",
            f"**{name}**, {_when(group[0])}; {group[0].report['header'][1]}:",
            "",
            f"| compared {HEAD} blocks | foreseen |",
            f"|---{RULE}---:|---:|",
        ]
        for bump in group:
            lines += _gpu_rows(bump)
        if name in known:
            lines += ["", "<details><summary>Every launch; void runs in brackets</summary>", ""]
            lines += [*_launch_rows(known[name]), "", "</details>"]
    return "\n".join(lines)


def on_cpu(folder: Path = CPU_RECORDS) -> str:
    """What was measured of two versions on the CPU: every verdict, and what moved."""
    lines = [f"Made by `python -m benchmarks.bump.page` from `tests/assets/cpu-bump/`; {TESTED}"]
    for bump in bumps(folder):
        report = bump.report
        lines += [
            "",
            f"**{bump.name}**, {_when(bump)}: SGLang {bump.what}; {report['header'][1]}; "
            f"{report['blocks']} blocks, {report['gpu_minutes']:.0f} minutes:",
            "",
            HEAD,
            RULE,
        ]
        lines += [_row(verdict) for verdict in bump.verdicts]
        moved = [f"{item['what']} {item['old']} -> {item['new']}" for item in report["moved"]]
        lines += ["", f"Moved: {', '.join(moved)}, and {report['moved_others']} packages of less weight."]
    return "\n".join(lines)


def _when(bump: Bump) -> str:
    return f"{bump.began_at[:16].replace('T', ' ')} UTC"


def _gpu_rows(bump: Bump) -> Iterator[str]:
    """Speed of every comparison; the rest of the one between two versions."""
    for verdict in bump.verdicts:
        told = verdict["evidence"]
        is_speed = told["metric"] == "output_tok_s"
        if is_speed or not bump.right:
            foreseen = bump.foreseen if is_speed else "-"
            yield f"| {bump.what} {_row(verdict)} {told.get('blocks', '-')} | {foreseen} |"


def _row(verdict: Mapping[str, Any]) -> str:
    told = verdict["evidence"]
    found = _change(told)
    return (
        f"| {verdict['kind']} | {verdict['subject']} | {told['metric']} | {_figure(told.get('reference'))} "
        f"| {_figure(told.get('now'))} | {verdict['headline'] if found == '-' else found} |"
    )


def _launch_rows(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| server | began | start, s | tok/s, run by run | step, ms (median) |"
    yield "|---|---|---:|---|---:|"
    for launch in found:
        runs = [
            f"({run['output_tok_s']:.1f})" if run["void"] else f"{run['output_tok_s']:.1f}"
            for run in launch["runs"]
        ]
        steps = sorted(run["step_ms_p50"] for run in launch["runs"])
        yield (
            f"| {launch['server']} | {launch['began_at'][11:19]} | {launch['startup_s']:.0f} | {', '.join(runs)} "
            f"| {median(steps):.2f} |"
        )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _change(told: Mapping[str, Any]) -> str:
    change, interval = told.get("change_percent"), told.get("interval_percent")
    if change is None:
        return "-"
    text = f"{change:+.1f} %"
    return text if interval is None else f"{text} ({interval[0]:+.1f}..{interval[1]:+.1f})"


def main() -> None:
    """Write both."""
    put(DOCUMENT, BEGIN, END, on_gpu())
    put(DOCUMENT, CPU_BEGIN, CPU_END, on_cpu())


if __name__ == "__main__":
    main()
