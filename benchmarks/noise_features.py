"""Figures of one run of the noise study: how its time was lost, and what might explain it. Needs numpy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STALL = 3.0
"""A gap this many times a run's median counts as a stall."""

WINDOW = 64
"""Steps over which a level is told."""

SLOW = 0.05
"""A run this much below the best is slow and wants a cause."""

GOOD_QUANTILE = 0.9
"""The speed that counts as the best: of this share of the runs."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        tok_s: tokens a second after the first.
        level_ms: median gap between tokens.
        lost: share of the run's time in stalls, beyond the median gap.
        windows_ms: median gap of every :data:`WINDOW` steps, in order.
        windows_t_s: when those were, CLOCK_MONOTONIC.
        facts: what may explain the speed, by name.
        looks: the sampler's, in order.
    """

    condition: str
    number: int
    tok_s: float
    level_ms: float
    lost: float
    windows_ms: Floats
    windows_t_s: Floats
    facts: Mapping[str, float]
    looks: Sequence[Mapping[str, float]]


def read_runs(path: Path) -> list[Run]:
    """All runs of a model; a last line cut short is dropped."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [_run(json.loads(line)) for line in lines if line.endswith("\n")]


def _run(row: Mapping[str, Any]) -> Run:
    t = np.array(row["t_us"], dtype=np.float64) / 1e6
    owner = np.array(row["owner"])
    same = owner[1:] == owner[:-1]
    gaps, at = np.diff(t)[same], t[1:][same]
    level = float(np.median(gaps))
    count = max(1, len(gaps) // WINDOW)
    parts = np.array_split(np.arange(len(gaps)), count)
    return Run(
        condition=row["condition"],
        number=row["run"],
        tok_s=row["metrics"]["decode_tok_s"],
        level_ms=1e3 * level,
        lost=float((gaps[gaps > STALL * level] - level).sum() / gaps.sum()),
        windows_ms=np.array([1e3 * np.median(gaps[part]) for part in parts]),
        windows_t_s=np.array([row["at_s"] + at[part].mean() for part in parts]),
        facts=_facts(row),
        looks=row["samples"],
    )


def _facts(row: Mapping[str, Any]) -> dict[str, float]:
    moved, span = row["moved"], row["interval_s"]
    found: dict[str, float] = {}

    def add(name: str, value: float | None) -> None:
        if value is not None and np.isfinite(value):
            found[name] = float(value)

    if "cpu_steal_s" in moved:
        wanted = moved["cpu_steal_s"] + moved["cpu_used_s"]
        add("steal, % of CPU time wanted", 100 * moved["cpu_steal_s"] / wanted if wanted else None)
        add("CPUs in use", moved["cpu_used_s"] / span)
        add("softirq, % of a CPU", 100 * moved["cpu_softirq_s"] / span)
    for name, key in (
        ("scheduler: wait for a CPU, % of time", "main_run_delay_s"),
        ("scheduler: CPU time, % of time", "main_cpu_s"),
        ("scheduler: system time, % of time", "main_system_s"),
        ("engine's other threads: wait for a CPU, % of time", "rest_run_delay_s"),
        ("engine's other threads: CPU time, % of time", "rest_cpu_s"),
        ("pressure cpu some, % of time", "pressure_cpu_some_s"),
        ("pressure memory some, % of time", "pressure_memory_some_s"),
    ):
        add(name, 100 * moved[key] / span if key in moved else None)
    for name, key in (
        ("scheduler: voluntary switches / s", "main_voluntary_switches"),
        ("scheduler: involuntary switches / s", "main_involuntary_switches"),
        ("scheduler: migrations / s", "perf_migrations"),
        ("scheduler: page faults / s", "main_minor_faults"),
        ("softirq net_rx / s", "softirq_net_rx"),
        ("softirq timer / s", "softirq_timer"),
        ("interrupts: reschedule / s", "irq_res"),
        ("interrupts: function call / s", "irq_cal"),
    ):
        add(name, moved[key] / span if key in moved else None)
    if moved.get("perf_cycles") and "perf_instructions" in moved:
        add("scheduler: instructions a cycle", moved["perf_instructions"] / moved["perf_cycles"])
    if moved.get("perf_cycles") and moved.get("perf_task_clock_ns"):
        add("scheduler: GHz", moved["perf_cycles"] / moved["perf_task_clock_ns"])
    add("client: lag p99, ms", row["lag_p99_ms"])
    add(
        "client: wait for a CPU, ms",
        None if row["client_run_delay_s"] is None else 1e3 * row["client_run_delay_s"],
    )
    looks = row["samples"]
    for name, key in (
        ("canary: CPU ms of fixed work", "canary_cpu_ms"),
        ("GPU: SM MHz", "sm_mhz"),
        ("GPU: power W", "power_w"),
        ("GPU: temperature", "gpu_c"),
        ("GPU: utilisation %", "gpu_util"),
    ):
        values = [look[key] for look in looks if look.get(key) is not None]
        add(name, float(np.median(values)) if values else None)
    reasons = [int(look["throttle"]) for look in looks if "throttle" in look]
    # Idle (1) and an application's own setting (2) are no throttling.
    add(
        "GPU: looks with a throttle reason, %",
        100 * sum(r & ~3 != 0 for r in reasons) / len(reasons) if reasons else None,
    )
    cpus = [look["main_on_cpu"] for look in looks if look.get("main_on_cpu") is not None]
    add("scheduler: CPUs seen on", len(set(cpus)) if cpus else None)
    return found


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Rank correlation; ``None`` where one of them does not vary."""
    a, b = (_ranks(np.asarray(values, dtype=np.float64)) for values in (x, y))
    if a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Floats) -> Floats:
    """Ranks from 0, ties shared."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    shared: Floats = ends - (counts + 1) / 2
    return shared[inverse]


def at_the_moment(runs: Sequence[Run], key: str) -> float | None:
    """Rank correlation of the gap level with a look at the same moment, within runs: both as a ratio to
    their run's median, so that what whole runs have in common does not count."""
    levels: list[float] = []
    looks: list[float] = []
    for run in runs:
        rows = [(look["t_s"], look[key]) for look in run.looks if look.get(key)]
        if len(rows) < 3 or len(run.windows_ms) < 3:
            continue
        t, values = np.array(rows, dtype=np.float64).T
        levels += list(run.windows_ms / np.median(run.windows_ms))
        looks += list(np.interp(run.windows_t_s, t, values) / np.median(values))
    return spearman(levels, looks) if len(levels) >= 10 else None
