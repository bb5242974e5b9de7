"""Where a step's time goes, from a profiler trace: parts on the GPU, gaps, who waited for whom, graph launches.

A cycle runs from the first operation of one verify pass (one decode pass without speculation) to that of
the next: every cycle then holds each part once. Which operation belongs to which part is told by the CPU span
in which it was launched; a trace without such spans is taken apart by its graph launches, of which the same ones
come round in the same order.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tokgate.analysis.step_parts import ANCHORS, ORDER, Marks, NoCycles, Parts, marks, parts
from tokgate.sglang.trace_spans import PREFILL, STEP, VERIFY, is_communication
from tokgate.trace.timeline import Floats, Ints, Timeline

CPU_BOUND_SHARE = 0.10
"""A step in which the GPU waits for launches for this share of the time is bound by the CPU."""

_IDLE_FACTOR = 3.0
"""Cycles longer than so many medians hold something else: an idle server, the profiler's own start."""

Bound = Literal["CPU", "GPU"]


@dataclass(frozen=True, slots=True)
class Cycles:
    """The cycles of one rank's trace, means over those that are whole.

    Attributes:
        count: cycles that the means are over.
        left_out: cycles with a prefill in them, or interrupted.
        period_ms: from cycle to cycle, under the profiler, which slows the CPU.
        busy_ms: time in which the device did anything.
        parts_ms: part -> time in which the device was busy with it; parts may overlap.
        waiting_ms: the device idled because the CPU had not yet launched what came next.
        within_ms: it idled between kernels of one graph.
        queued_ms: it idled although the next operation was launched: launch latency, waiting for events.
        communication_ms: busy with exchange between GPUs.
        launches: ``cudaGraphLaunch`` in each cycle, in order.
        launched_parts: parts that were launched as graphs, with how often over all cycles.
        kernels_outside: kernels a cycle that no graph launched.
        told_by: what told the parts: ``spans``, ``graph order`` or ``CPU spans`` (no device in the trace).
        notes: what a reader must know.
    """

    count: int
    left_out: int
    period_ms: float
    busy_ms: float
    parts_ms: Mapping[str, float]
    told_by: str
    waiting_ms: float = 0.0
    within_ms: float = 0.0
    queued_ms: float = 0.0
    communication_ms: float = 0.0
    launches: tuple[int, ...] = ()
    launched_parts: Mapping[str, int] = field(default_factory=dict)
    kernels_outside: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def on_device(self) -> bool:
        """Whether the trace shows a device at all; times are CPU times otherwise."""
        return self.told_by != "CPU spans"

    @property
    def anchor(self) -> str:
        """The pass that a cycle begins with: ``verify``, ``decode`` or a whole ``step``."""
        return next((part for part in ANCHORS if part in self.parts_ms), STEP)

    @property
    def speculative(self) -> bool:
        """Whether the cycles are those of speculation."""
        return VERIFY in self.parts_ms

    @property
    def idle_ms(self) -> float:
        """Time of a cycle in which the device did nothing."""
        return self.period_ms - self.busy_ms

    @property
    def bound(self) -> Bound | None:
        """What a cycle is bound by; ``None`` without a device in the trace."""
        if not self.on_device:
            return None
        return "CPU" if self.waiting_ms >= CPU_BOUND_SHARE * self.period_ms else "GPU"

    @property
    def launches_per_step(self) -> int:
        """The usual number of graph launches a cycle."""
        return Counter(self.launches).most_common(1)[0][0] if self.launches else 0


def cycles(timeline: Timeline, communicates: Callable[[str], bool] = is_communication) -> Cycles:
    """Take a trace apart.

    Args:
        timeline: of one rank.
        communicates: which kernels exchange data between GPUs.

    Raises:
        NoCycles: fewer than two passes, or nothing that tells them apart.
    """
    found = marks(timeline)
    if not len(timeline.begin_us):
        if timeline.truncated:
            # The profiler writes what ran on a device behind what ran on the CPU: nothing follows from its absence.
            raise NoCycles("no operation of a device before the cut: whether there was one cannot be told")
        return _on_cpu(found)
    told = parts(timeline, found)
    notes = []
    if told.told_by == "graph order":
        notes.append("no spans in the trace: parts are told by the order of graph launches")
    if len(timeline.devices) > 1:
        notes.append(f"device {timeline.devices[0]} of {len(timeline.devices)} in the trace")
    if timeline.truncated:
        notes.append("the file ends in the middle: what was cut off is not counted")
    return _Windows(timeline, told, communicates).summary(tuple(notes))


def _whole(starts: Floats, prefills: Floats) -> tuple[list[tuple[float, float]], int]:
    """Cycles between the starts of passes, and how many were left out.

    Raises:
        NoCycles: none is whole.
    """
    if len(starts) < 2:
        raise NoCycles(f"{len(starts)} pass of the target in the trace: a cycle needs two")
    borders = [(float(begin), float(end)) for begin, end in itertools.pairwise(starts)]
    plain = [
        (begin, end)
        for begin, end in borders
        if np.searchsorted(prefills, begin) == np.searchsorted(prefills, end)
    ]
    if not plain:
        raise NoCycles("every cycle of the trace holds a prefill: record more steps")
    usual = float(np.median([end - begin for begin, end in plain]))
    whole = [(begin, end) for begin, end in plain if end - begin <= _IDLE_FACTOR * usual]
    return whole, len(borders) - len(whole)


class _Windows:
    """Cycles on the device."""

    def __init__(self, timeline: Timeline, told: Parts, communicates: Callable[[str], bool]) -> None:
        self._times = timeline
        self._told = told
        self._exchange = np.array([communicates(name) for name in timeline.names], np.bool_)
        self._longest_us = float((timeline.end_us - timeline.begin_us).max())
        _, first = np.unique(told.call[told.graph], return_index=True)
        # The first operation of every graph launch, in order.
        self._firsts = np.sort(np.flatnonzero(told.graph)[first])

    def summary(self, notes: tuple[str, ...]) -> Cycles:
        """Means over all whole cycles."""
        times, told = self._times, self._told
        prefills = times.begin_us[told.part == ORDER.index(PREFILL)]
        whole, left_out = _whole(told.starts_us, prefills)
        sums: dict[str, float] = defaultdict(float)
        launched: Counter[str] = Counter()
        launches = []
        for begin, end in whole:
            rows = self._rows(begin, end)
            froms, tos = np.maximum(times.begin_us[rows], begin), np.minimum(times.end_us[rows], end)
            islands = _islands(froms, tos)
            sums["period"] += end - begin
            sums["busy"] += sum(stop - start for start, stop, _, _ in islands)
            for number in np.unique(told.part[rows]):
                mine = told.part[rows] == number
                sums[ORDER[number]] += _covered(froms[mine], tos[mine])
            exchange = self._exchange[times.name[rows]] & times.is_kernel[rows]
            sums["communication"] += _covered(froms[exchange], tos[exchange])
            for kind, length in self._gaps(rows, islands, end):
                sums[kind] += length
            fresh = rows[times.begin_us[rows] >= begin]
            sums["outside"] += int((times.is_kernel[fresh] & ~told.graph[fresh]).sum()) * 1e3
            firsts = self._firsts[_between(times.begin_us[self._firsts], begin, end)]
            launches.append(len(firsts))
            launched.update(ORDER[number] for number in told.part[firsts])
        mean = {name: value / len(whole) / 1e3 for name, value in sums.items()}
        return Cycles(
            count=len(whole),
            left_out=left_out,
            period_ms=mean["period"],
            busy_ms=mean["busy"],
            parts_ms={name: mean[name] for name in ORDER if mean.get(name)},
            told_by=told.told_by,
            waiting_ms=mean.get("waiting", 0.0),
            within_ms=mean.get("within", 0.0),
            queued_ms=mean.get("queued", 0.0),
            communication_ms=mean["communication"],
            launches=tuple(launches),
            launched_parts={name: launched[name] for name in ORDER if launched[name]},
            kernels_outside=mean["outside"],
            notes=notes,
        )

    def _rows(self, begin: float, end: float) -> Ints:
        """Operations that are under way between two moments."""
        low = int(np.searchsorted(self._times.begin_us, begin - self._longest_us))
        high = int(np.searchsorted(self._times.begin_us, end))
        return low + np.flatnonzero(self._times.end_us[low:high] > begin)

    def _gaps(self, rows: Ints, islands: Sequence[Island], end: float) -> Iterator[tuple[str, float]]:
        """Idle times by why the device idled; a cycle begins with an operation and has none before it."""
        for (_, stop, _, last), (start, _, first, _) in itertools.pairwise(islands):
            yield self._why(rows[last], rows[first], stop), start - stop
        _, stop, _, last = islands[-1]
        if end > stop:
            yield self._why(rows[last], int(np.searchsorted(self._times.begin_us, end)), stop), end - stop

    def _why(self, before: int, after: int, idle_from_us: float) -> str:
        call = self._told.call[after]
        if self._told.graph[after] and call == self._told.call[before]:
            return "within"
        return "waiting" if call >= 0 and self._times.call_us[call] > idle_from_us else "queued"


def _on_cpu(spans: Marks) -> Cycles:
    """Cycles of an engine without a device, from its CPU spans alone.

    Raises:
        NoCycles: fewer than two passes.
    """
    anchor = next((name for name in ANCHORS if name in spans), None)
    if anchor is None:
        raise NoCycles("the trace shows neither a device nor a pass of the target on the CPU")
    prefills = spans[PREFILL].begin_us if PREFILL in spans else np.empty(0)
    whole, left_out = _whole(spans[anchor].begin_us, prefills)
    wanted = [
        name for name in ORDER if name in spans and name != PREFILL and (name != STEP or anchor == STEP)
    ]
    sums: dict[str, float] = defaultdict(float)
    for begin, end in whole:
        sums["period"] += end - begin
        pieces = []
        for name in wanted:
            under_way = (spans[name].begin_us < end) & (spans[name].end_us > begin)
            froms = np.maximum(spans[name].begin_us[under_way], begin)
            tos = np.minimum(spans[name].end_us[under_way], end)
            sums[name] += _covered(froms, tos)
            pieces += list(zip(froms, tos, strict=True))
        froms, tos = np.array(sorted(pieces)).T
        sums["busy"] += _covered(froms, tos)
    mean = {name: value / len(whole) / 1e3 for name, value in sums.items()}
    return Cycles(
        count=len(whole),
        left_out=left_out,
        period_ms=mean["period"],
        busy_ms=mean["busy"],
        parts_ms={name: mean[name] for name in wanted if mean[name]},
        told_by="CPU spans",
        notes=("the trace shows no device: times are those of passes on the CPU",),
    )


Island = tuple[float, float, int, int]
"""A time of activity: from, to, index of the first operation, index of the one that ends last."""


def _islands(begin: Floats, end: Floats) -> list[Island]:
    found: list[Island] = []
    for index, (start, stop) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        if found and start <= found[-1][1]:
            if stop > found[-1][1]:
                found[-1] = (found[-1][0], stop, found[-1][2], index)
            continue
        found.append((start, stop, index, index))
    return found


def _covered(begin: Floats, end: Floats) -> float:
    return sum(stop - start for start, stop, _, _ in _islands(begin, end))


def _between(values: Floats, begin: float, end: float) -> slice:
    low, high = np.searchsorted(values, [begin, end])
    return slice(int(low), int(high))
