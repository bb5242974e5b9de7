"""Profiler traces for ``tokgate explain``: read, taken apart, as text, figures and bars for a page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokgate.analysis.cycles import Cycles, cycles
from tokgate.analysis.roofline import roofline
from tokgate.analysis.step_parts import NoCycles
from tokgate.errors import UsageFault
from tokgate.models.traffic import traffic
from tokgate.report.explain_trace import (
    cycles_json,
    device_name,
    effective_line,
    roofline_line,
    target_ms,
    trace_text,
)
from tokgate.sglang.trace_spans import label
from tokgate.trace.timeline import Timeline, read_timeline

_RANK = re.compile(r"-TP-\d+")


@dataclass(frozen=True, slots=True)
class Floor:
    """What a roofline is reckoned from.

    Attributes:
        target: folder of the target model.
        bandwidth_bytes_s: of the memory.
        context_tokens: in all requests together.
    """

    target: Path
    bandwidth_bytes_s: float
    context_tokens: int


@dataclass(frozen=True, slots=True)
class ExplainedTrace:
    """One trace.

    Attributes:
        found: its cycles; ``None`` when there are none to be told.
        text, json: the whole of it.
    """

    name: str
    found: Cycles | None
    text: str
    json: dict[str, object]


def explain_trace(
    path: Path, name: str, floor: Floor | None = None, effective_ms: float | None = None
) -> ExplainedTrace:
    """Read a trace and say what it shows.

    Args:
        name: how it is called in the text.
        floor: for the roofline.
        effective_ms: of a cycle as measured without the profiler, whose rest is named.

    Raises:
        UsageFault: unreadable, no trace, or one without a single event.
    """
    timeline = read_timeline(path, label)
    if not timeline.events:
        cut = ": the file is cut off before the first one" if timeline.truncated else ""
        raise UsageFault(f"{path}: the trace holds no events{cut}")
    facts = _facts(timeline)
    try:
        found = cycles(timeline)
    except NoCycles as reason:
        told = {"name": name, "cycles": None, "why": str(reason), **facts}
        return ExplainedTrace(name, None, trace_text(name, timeline, str(reason)), told)
    lines = []
    if effective_ms is not None:
        lines.append(f"  measured   {effective_line(found, effective_ms)}")
    if floor is not None:
        lines.append(f"  roofline   {_roofline(found, floor)}")
    told = {"name": name, "cycles": cycles_json(found), **facts}
    return ExplainedTrace(name, found, trace_text(name, timeline, found, lines), told)


def rank_text(traces: Sequence[ExplainedTrace]) -> str:
    """What the exchange between GPUs cost each rank, where several ranks of one recording are given.

    A collective ends on all ranks at once and begins on each when it comes there: a rank that comes early waits
    in it. The least of them is therefore nearest to the exchange itself.
    """
    ranks = {
        each.name: each.found for each in traces if each.found is not None and each.found.communication_ms
    }
    if len(ranks) < 2 or len({_RANK.sub("", name) for name in ranks}) > 1:
        return ""
    told = {
        match[0].strip("-"): f.communication_ms for name, f in ranks.items() if (match := _RANK.search(name))
    }
    least = min(told.values())
    spent = ", ".join(f"{name} {ms:.2f} ms" for name, ms in told.items())
    early = ", ".join(name for name, ms in told.items() if ms > 1.5 * least)
    said = f"ranks: exchange {spent} a cycle; the least is nearest to the exchange itself"
    return f"{said}, {early} waited for the others" if early else said


def _facts(timeline: Timeline) -> dict[str, object]:
    return {
        "gpu": device_name(timeline),
        "events": timeline.events,
        "graph_launches": int(timeline.call_is_graph.sum()),
        "truncated": timeline.truncated,
    }


def _roofline(found: Cycles, floor: Floor) -> str:
    read = traffic(floor.target)
    if isinstance(read, str):
        return f"not known: {read}"
    held = roofline(
        read,
        step_ms=target_ms(found),
        context_tokens=floor.context_tokens,
        requests=1,
        bandwidth_bytes_s=floor.bandwidth_bytes_s,
    )
    return roofline_line(held, found.anchor)


def bars(traces: Sequence[ExplainedTrace]) -> str:
    """Parts and idle times of each trace's cycle as stacked bars, SVG; empty when none has cycles.

    Raises:
        UsageFault: matplotlib is not installed.
    """
    drawn = [(each.name, each.found) for each in traces if each.found is not None]
    if not drawn:
        return ""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageFault(
            "--html draws with matplotlib, which is not installed: pip install matplotlib"
        ) from error
    figure = Figure(figsize=(9, 1.2 + 0.5 * len(drawn)), layout="constrained")
    axes = figure.subplots()
    left = [0.0] * len(drawn)
    pieces = [{**found.parts_ms, **_idle(found)} for _, found in drawn]
    for part in dict.fromkeys(part for piece in pieces for part in piece):
        values = [piece.get(part, 0.0) for piece in pieces]
        axes.barh([name for name, _ in drawn], values, left=left, label=part)
        left = [start + value for start, value in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds a cycle, under the profiler")
    axes.legend(fontsize="small", ncols=4)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :]


def _idle(found: Cycles) -> dict[str, float]:
    if not found.on_device:
        return {"between passes": found.idle_ms}
    return {
        "waiting for launches": found.waiting_ms,
        "idle within graphs": found.within_ms,
        "idle, launched": found.queued_ms,
    }
