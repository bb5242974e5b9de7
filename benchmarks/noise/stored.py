"""What the stored Samples of an earlier campaign say of why runs differ: they have no gaps, only each run's figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.noise.features import spearman
from benchmarks.page import put
from tokgate.load.sample import Sample, read_samples

FACTS: dict[str, Callable[[Sample], float | None]] = {
    "median step": lambda s: s.metrics.get("step_ms_p50"),
    "99th percentile of the step": lambda s: s.metrics.get("step_ms_p99"),
    "TTFT": lambda s: s.metrics.get("ttft_s_p50"),
    "steal, average of all CPUs": lambda s: s.contention.get("steal_s"),
    "worst thread's wait for a CPU": lambda s: s.contention.get("scheduler_run_delay_s"),
    "load average": lambda s: s.contention.get("load_1m"),
    "client: lag p99": lambda s: s.audit.lag_p99_s,
    "client: wait for a CPU": lambda s: s.audit.client_run_delay_s,
}


def cases(folder: Path) -> dict[str, list[Sample]]:
    """Runs by case, void ones included."""
    found: dict[str, list[Sample]] = {}
    for sample in read_samples(folder):
        if "decode_tok_s" in sample.metrics:
            found.setdefault(f"{sample.identity.workload}[{sample.identity.profile}]", []).append(sample)
    return {name: sorted(runs, key=lambda s: s.identity.run) for name, runs in sorted(found.items())}


def table(folder: Path) -> list[str]:
    """Markdown: cases, then what goes with speed once each case is put on its own median."""
    found = cases(folder)
    lines = [
        "| case | runs | tok/s, slowest..quickest | median step ms | p99 step ms | steal, % of all CPUs |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in found.items():
        span = runs[0].contention.get("interval_s")
        steal = (
            [100 * s.contention["steal_s"] / s.contention.get("interval_s", s.duration_s) for s in runs]
            if span
            else []
        )
        cells = [
            _ends([s.metrics["decode_tok_s"] for s in runs], ".0f"),
            _ends([s.metrics["step_ms_p50"] for s in runs], ".2f"),
            _ends([s.metrics["step_ms_p99"] for s in runs], ".1f"),
            _ends(steal, ".2f") if steal else "not known",
        ]
        lines.append(f"| {name} | {len(runs)} | {' | '.join(cells)} |")
    lines += ["", "| beside the run | runs | rank correlation with tok/s |", "|---|---|---|"]
    rows = []
    for fact, get in FACTS.items():
        pairs = [pair for runs in found.values() for pair in _relative(runs, get)]
        rho = spearman([a for a, _ in pairs], [b for _, b in pairs]) if len(pairs) > 4 else None
        if rho is not None:
            rows.append((fact, len(pairs), rho))
    lines += [
        f"| {fact} | {count} | {rho:+.2f} |" for fact, count, rho in sorted(rows, key=lambda r: -abs(r[2]))
    ]
    level = [pair for runs in found.values() for pair in _relative(runs, FACTS["median step"])]
    speed, step = np.log(np.array(level)).T
    share = 100 * np.corrcoef(speed, step)[0, 1] ** 2
    lines += [
        "",
        f"The median step alone explains {share:.0f} % of the variance of ln(tok/s) within cases.",
    ]
    return lines


def _relative(runs: Sequence[Sample], get: Callable[[Sample], float | None]) -> list[tuple[float, float]]:
    """Speed and fact of each run; speed, step and TTFT as ratios to the case's median."""
    values = [(s.metrics["decode_tok_s"], get(s)) for s in runs]
    known = [(speed, value) for speed, value in values if value is not None]
    if not known:
        return []
    middle = float(np.median([speed for speed, _ in known]))
    scale = float(np.median([value for _, value in known]))
    return [(speed / middle, value / scale if scale > 0 else value) for speed, value in known]


def _ends(values: Sequence[float], form: str) -> str:
    return f"{min(values):{form}}..{max(values):{form}}"


def write(folder: Path, page: Path) -> None:
    """Fill the marked part of the page."""
    begin, end = "<!-- benchmarks.noise stored: begin -->", "<!-- benchmarks.noise stored: end -->"
    text = "\n".join(table(folder))
    put(page, begin, end, text)
    print(text)
