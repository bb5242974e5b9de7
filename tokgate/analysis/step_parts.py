"""Which operation of a trace belongs to which part of a step, and where each pass of the target begins."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokgate.sglang.trace_spans import DECODE, DRAFT, DRAFT_EXTEND, PREFILL, STEP, VERIFY
from tokgate.trace.timeline import Bools, Floats, Ints, Spans, Timeline

OTHER = "other kernels"
"""Operations in no labelled pass: sampling, building the tree, preparing buffers, copies."""

ORDER = (VERIFY, DECODE, STEP, DRAFT, DRAFT_EXTEND, PREFILL, OTHER)
ANCHORS = (VERIFY, DECODE, STEP)
# Innermost first: a draft's eager passes are DECODE passes inside ``draft``.
_PRECEDENCE = (DRAFT, DRAFT_EXTEND, VERIFY, DECODE, PREFILL)

Marks = Mapping[str, Spans]


class NoCycles(Exception):
    """A trace that shows no two passes from which a cycle could be told; the message says what is absent."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Operations by part.

    Attributes:
        part: of each operation, an index into :data:`ORDER`.
        call: of each, the index of the call that launched it; -1 for none.
        graph: whether that call was ``cudaGraphLaunch``.
        starts_us: when the first operation of each pass of the target began.
        told_by: ``spans`` or ``graph order``.
    """

    part: Ints
    call: Ints
    graph: Bools
    starts_us: Floats
    told_by: str


def marks(timeline: Timeline) -> dict[str, Spans]:
    """The labelled spans, nested ones merged, and a draft's passes told from the target's."""
    found = {name: _merged(spans) for name, spans in timeline.spans.items()}
    if VERIFY in found and DECODE in found:
        # With speculation the target runs in mode TARGET_VERIFY: DECODE passes are the draft's steps.
        found[DRAFT] = _merged(_joined([found.get(DRAFT), found.pop(DECODE)]))
    if VERIFY in found:
        # Some of the draft's passes borrow the mode of the target's.
        found[VERIFY] = _outside(
            found[VERIFY], [found[name] for name in (DRAFT, DRAFT_EXTEND) if name in found]
        )
    return found


def parts(timeline: Timeline, spans: Marks) -> Parts:
    """Lay every operation to a part.

    Raises:
        NoCycles: nothing tells the parts.
    """
    call = timeline.call_of()
    graph: Bools = call >= 0
    if len(timeline.call_us):
        graph = graph & timeline.call_is_graph[np.maximum(call, 0)]
    anchor = next((name for name in ANCHORS if name in spans), None)
    if anchor is None:
        part, starts = _by_graph_order(timeline, call, graph)
        return Parts(part, call, graph, starts, "graph order")
    part = np.full(len(call), ORDER.index(OTHER), np.int64)
    for name in (STEP,) if anchor is STEP else reversed(_PRECEDENCE):
        if name in spans:
            part[_inside(timeline, call, spans[name]) >= 0] = ORDER.index(name)
    starts = _starts(timeline, _inside(timeline, call, spans[anchor]))
    return Parts(part, call, graph, starts, "spans")


def _merged(spans: Spans) -> Spans:
    """Nested and overlapping spans of a thread as one."""
    kept: list[tuple[float, float, int]] = []
    for thread in np.unique(spans.thread):
        mine = spans.thread == thread
        fresh = True
        for begin, end in zip(spans.begin_us[mine], spans.end_us[mine], strict=True):
            if not fresh and begin < kept[-1][1]:
                kept[-1] = (kept[-1][0], max(kept[-1][1], float(end)), int(thread))
                continue
            kept.append((float(begin), float(end), int(thread)))
            fresh = False
    kept.sort()
    begins, ends, threads = zip(*kept, strict=True)
    return Spans(np.array(begins), np.array(ends), np.array(threads, np.int64))


def _outside(spans: Spans, others: Sequence[Spans]) -> Spans:
    """Those that lie in none of the others."""
    inside = np.zeros(len(spans.begin_us), np.bool_)
    for other in others:
        for thread in np.unique(other.thread):
            mine = other.thread == thread
            slot = np.searchsorted(other.begin_us[mine], spans.begin_us, side="right") - 1
            ends = other.end_us[mine][np.maximum(slot, 0)]
            inside |= (spans.thread == thread) & (slot >= 0) & (spans.begin_us < ends)
    return Spans(spans.begin_us[~inside], spans.end_us[~inside], spans.thread[~inside])


def _joined(spans: Sequence[Spans | None]) -> Spans:
    given = [item for item in spans if item is not None]
    begin = np.concatenate([item.begin_us for item in given])
    order = np.argsort(begin, kind="stable")
    end = np.concatenate([item.end_us for item in given])[order]
    return Spans(begin[order], end, np.concatenate([item.thread for item in given])[order])


def _inside(timeline: Timeline, call: Ints, spans: Spans) -> Ints:
    """For every operation the span in which it was launched; -1 for none."""
    found = np.full(len(call), -1, np.int64)
    launched = call >= 0
    if not launched.any():
        return found
    at = timeline.call_us[np.maximum(call, 0)]
    thread = timeline.call_thread[np.maximum(call, 0)]
    for number in np.unique(spans.thread):
        mine = np.flatnonzero(spans.thread == number)
        slot = np.searchsorted(spans.begin_us[mine], at, side="right") - 1
        span = mine[np.maximum(slot, 0)]
        fits = launched & (thread == number) & (slot >= 0) & (at <= spans.end_us[span])
        found[fits] = span[fits]
    return found


def _starts(timeline: Timeline, instance: Ints) -> Floats:
    """When the first operation of each pass began."""
    ours = np.flatnonzero(instance >= 0)
    # Operations are in order of their beginning, so the first of a pass is its earliest.
    _, first = np.unique(instance[ours], return_index=True)
    return np.sort(timeline.begin_us[ours[first]])


def _by_graph_order(timeline: Timeline, call: Ints, graph: npt.NDArray[np.bool_]) -> tuple[Ints, Floats]:
    """Parts by graph launch: launches with the same kernels are the same graph; the longest is the target's."""
    of_graphs = np.flatnonzero(graph)
    launches, first = np.unique(call[of_graphs], return_index=True)
    if len(launches) < 2:
        raise NoCycles(
            "no spans and fewer than two graph launches: nothing tells one step from the next; "
            "take the trace with Python frames (with_stack), or with SGLang 0.5.15 or later"
        )
    length = timeline.end_us - timeline.begin_us
    kinds: dict[int, tuple[int, int]] = {}
    busy: dict[tuple[int, int], float] = defaultdict(float)
    for launch, row in zip(launches, of_graphs[first], strict=True):
        mine = of_graphs[call[of_graphs] == launch]
        kind = (int(timeline.name[row]), len(mine))
        kinds[int(launch)] = kind
        busy[kind] += float(length[mine].sum())
    number = Counter(kinds.values())
    target = max(busy, key=lambda kind: busy[kind] / number[kind])
    in_order = sorted(kinds, key=lambda launch: float(timeline.call_us[launch]))
    names = _names([kinds[launch] for launch in in_order], target, number)
    part = np.full(len(call), ORDER.index(OTHER), np.int64)
    for launch, kind in kinds.items():
        part[call == launch] = ORDER.index(names.get(kind, OTHER))
    begins = dict(zip(map(int, launches), timeline.begin_us[of_graphs[first]], strict=True))
    return part, np.array(sorted(float(begins[launch]) for launch in kinds if kinds[launch] == target))


def _names(
    order: Sequence[tuple[int, int]], target: tuple[int, int], number: Counter[tuple[int, int]]
) -> dict[tuple[int, int], str]:
    """Graphs by name: after the target's pass comes draft extend, then the draft of the next cycle."""
    others = [kind for kind in number if kind != target and number[kind] >= number[target] // 2]
    names = {target: VERIFY if others else DECODE}
    if len(others) == 1:
        return names | {others[0]: DRAFT}
    after = Counter(b for a, b in itertools.pairwise(order) if a == target and b in others)
    extend = after.most_common(1)[0][0] if after else None
    return names | {kind: DRAFT_EXTEND if kind == extend else DRAFT for kind in others}
