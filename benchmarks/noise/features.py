"""Figures of one run of the noise study: how its time was lost, and what might explain it. Needs numpy, no scipy."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokgate.config.gate import VoidBounds

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
    """All runs of a model, of a file that may be gzipped; a last line cut short is dropped."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    lines = text.splitlines(keepends=True)
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


OWN_WORK, OWN_MEMORY = "scheduler's CPU: ms of fixed work", "scheduler's CPU: ms of memory reads"
SPARE_WORK, SPARE_MEMORY = "spare CPU: ms of fixed work", "spare CPU: ms of memory reads"
BUSY = "GPU: busy in the second half, %"
GATES_OWN = "`slow_cpu` as the gate has it"
SIBLING = "sibling of the scheduler's CPU: busy, %"
MEANS = {
    OWN_WORK: "own_cpu_ms",
    OWN_MEMORY: "own_memory_ms",
    SPARE_WORK: "canary_cpu_ms",
    SPARE_MEMORY: "canary_memory_ms",
    SIBLING: "sibling_busy",
    "sibling of the scheduler's CPU: softirq, %": "sibling_softirq",
    "scheduler's CPU: softirq, %": "own_softirq",
    "scheduler's CPU: system, %": "own_system",
    "scheduler's CPU: steal, %": "own_steal",
    "GPU: ms of the NVML queries": "nvml_ms",
}


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
        ("pressure cpu some, % of time", "pressure_cpu_some_s"),
        ("pressure memory some, % of time", "pressure_memory_some_s"),
    ):
        add(name, 100 * moved[key] / span if key in moved else None)
    for name, key in (
        ("scheduler: voluntary switches / s", "main_voluntary_switches"),
        ("scheduler: involuntary switches / s", "main_involuntary_switches"),
        ("scheduler: migrations / s", "perf_migrations"),
        ("scheduler: page faults / s", "main_minor_faults"),
        ("softirq timer / s", "softirq_timer"),
        ("interrupts: reschedule / s", "irq_res"),
    ):
        add(name, moved[key] / span if key in moved else None)
    # What a token costs whatever the speed; a second's share of it would only tell the speed again.
    for name, key, unit in (
        ("softirq net_rx / token", "softirq_net_rx", 1),
        ("interrupts: function call / token", "irq_cal", 1),
        ("engine's other threads: CPU ms / token", "rest_cpu_s", 1e3),
    ):
        add(name, unit * moved[key] / len(row["t_us"]) if key in moved else None)
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
    # Means: a run that was slow for a third of its time shows a third of it, as its speed does.
    for name, key in MEANS.items():
        values = [look[key] for look in looks if look.get(key) is not None]
        add(name, float(np.mean(values)) if values else None)
    for name, key in (
        ("GPU: SM MHz", "sm_mhz"),
        ("GPU: power W (follows the speed)", "power_w"),
        ("GPU: temperature (follows the speed)", "gpu_c"),
        ("GPU: utilisation % (follows the speed)", "gpu_util"),
    ):
        values = [look[key] for look in looks if look.get(key) is not None]
        add(name, float(np.median(values)) if values else None)
    # NVML tells the last tenths of a second: the first half is still about what was before.
    late = [look["gpu_util"] for look in looks[len(looks) // 2 :] if look.get("gpu_util") is not None]
    add(BUSY, float(np.median(late)) if late else None)
    scanned = list(row.get("scanned_ms", {}).values())
    if scanned:
        quick = float(np.quantile(scanned, 0.1))
        add("CPUs slow before the run, %", 100 * float(np.mean(np.array(scanned) > 1.15 * quick)))
        slowdown = found[OWN_WORK] / quick if OWN_WORK in found else None
        add("scheduler's CPU: fixed work, x the quickest CPUs'", slowdown)
        if slowdown is not None and BUSY in found:
            bounds = VoidBounds()
            waited = found[BUSY] < 100 * bounds.gpu_busy_share
            add(GATES_OWN, float(waited and slowdown > bounds.scheduler_cpu_slowdown))
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


DISTURBED = 1.15
"""Fixed work that takes this many times as long as at its quickest tenth counts as disturbed."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How quick a CPU was, look by look.

    Attributes:
        looks: how many.
        disturbed: share of them that took more than :data:`DISTURBED` x their quickest tenth.
        factor: median of these, x the quickest tenth; ``nan`` when there are none.
    """

    looks: int
    disturbed: float
    factor: float


def cpu_speed(runs: Sequence[Run], key: str) -> Speed | None:
    """Speed of a CPU over a whole study; ``None`` where the canary was not there."""
    values = np.array([look[key] for run in runs for look in run.looks if look.get(key) is not None])
    if not len(values):
        return None
    ratio = values / np.quantile(values, 0.1)
    slow = ratio > DISTURBED
    return Speed(
        len(values), float(slow.mean()), float(np.median(ratio[slow])) if slow.any() else float("nan")
    )


@dataclass(frozen=True, slots=True)
class Episode:
    """A time in which steps were slow, whatever was measured then.

    Attributes:
        seconds: from its first slow window to the end of its last.
        factor: median step in it against the undisturbed one.
        runs, conditions: that it met.
    """

    seconds: float
    factor: float
    runs: int
    conditions: tuple[str, ...]


EPISODE_LEVEL, EPISODE_GAP_S, EPISODE_WINDOWS = 1.2, 1.5, 5
"""Slow means so much above the undisturbed step, in the middle of so many windows; a pause joins up to so long."""


def episodes(runs: Sequence[Run]) -> tuple[list[Episode], float]:
    """Slow episodes in time, across runs and conditions, and the share of all windows that they hold."""
    rows = sorted(
        (float(t), float(ms), run)
        for run in runs
        for t, ms in zip(run.windows_t_s, run.windows_ms, strict=True)
    )
    t = np.array([row[0] for row in rows])
    ms = np.array([row[1] for row in rows])
    quick = float(np.quantile(ms, 0.25))
    half = EPISODE_WINDOWS // 2
    smooth = np.array([np.median(ms[max(0, i - half) : i + half + 1]) for i in range(len(ms))])
    groups: list[list[int]] = []
    for i in np.flatnonzero(smooth > EPISODE_LEVEL * quick):
        if groups and t[i] - t[groups[-1][-1]] <= EPISODE_GAP_S:
            groups[-1].append(int(i))
        else:
            groups.append([int(i)])
    kept = [group for group in groups if len(group) >= EPISODE_WINDOWS]
    found = [
        Episode(
            seconds=float(t[group[-1]] - t[group[0]]),
            factor=float(np.median(ms[group]) / quick),
            runs=len({rows[i][2].number for i in group}),
            conditions=tuple(dict.fromkeys(rows[i][2].condition for i in group)),
        )
        for group in kept
    ]
    return found, sum(map(len, kept)) / len(ms)
