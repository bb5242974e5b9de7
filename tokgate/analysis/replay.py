"""Are CUDA graphs captured, and are they used? From a server's log and its counter of forward passes.

Captured is no proof of use: only ``sglang:cuda_graph_passes_total`` tells that a pass was replayed, and
it counts the target's passes alone. What is absent (the counter, a line of the log) proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokgate.sglang.graphs import ExpectedGraphs
from tokgate.sglang.metrics import GraphPasses

REPLAYED_SHARE = 0.99
"""Graphs count as used when this share of the decode passes was replayed; see docs/decisions."""

PREFILL = "target-prefill"
State = Literal["replayed", "not replayed", "off", "not off", "unknown"]
Captures = Mapping[str, Sequence[str]]
"""Kind of graph -> ranks whose log shows the end of its capture; ``""`` where lines name no rank."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What of the expected was captured.

    Attributes:
        lines: one phrase a kind that was captured, with its ranks.
        absent: one phrase a kind, or kind and rank, whose capture the log does not show.
    """

    lines: tuple[str, ...]
    absent: tuple[str, ...]


def coverage(captures: Captures, expected: ExpectedGraphs, ranks: int) -> Coverage:
    """Captures by kind and rank, held against those expected.

    Args:
        captures: as the log shows them.
        expected: of this version, backend and number of draft steps.
        ranks: tensor-parallel ranks.
    """
    lines: list[str] = []
    absent: list[str] = []
    for kind in dict.fromkeys([*expected.captures, *captures]):
        seen = {_tensor(rank) for rank in captures.get(kind, ())}
        # From 0.5.12 on rank 0 alone prints the draft's captures.
        told = ranks if expected.draft_on_all_ranks or not kind.startswith("draft") else 1
        if not seen:
            absent.append(f"{kind}: no capture in the log")
            continue
        lines.append(kind if told == 1 else f"{kind} on {len(seen)} of {told} ranks")
        missing = [f"TP{rank}" for rank in range(told) if f"TP{rank}" not in seen]
        if missing and kind in expected.captures:
            absent.append(f"{kind}: no capture on {', '.join(missing)} in the log")
    return Coverage(tuple(lines), tuple(absent))


def _tensor(rank: str) -> str:
    return next((part for part in rank.split() if part.startswith("TP")), "TP0")


@dataclass(frozen=True, slots=True)
class GraphUse:
    """What became of the graphs.

    Attributes:
        state: ``replayed`` or ``not replayed`` where they were wanted; ``off`` or ``not off`` where not;
            ``unknown`` when what would prove it is absent.
        why: for every state but ``replayed`` and ``off``, what was seen or is absent.
        replayed, eager: decode passes from a graph and without; ``None`` when not counted.
    """

    state: State
    why: str = ""
    replayed: int | None = None
    eager: int | None = None

    @property
    def passes(self) -> int:
        """Decode passes counted."""
        return (self.replayed or 0) + (self.eager or 0)


def graph_use(
    passes: Sequence[GraphPasses | None],
    captures: Captures | None,
    found: Coverage,
    *,
    wanted: bool,
    prefill_wanted: bool,
) -> GraphUse:
    """Judge one server over the runs of one workload.

    Args:
        passes: of each run; ``None`` where the server does not count them.
        captures: ``None`` when the log could not be read.
        found: the same captures against those expected.
        wanted, prefill_wanted: whether the profile asks for decode and for prefill graphs; the latter
            are looked at only where both are off.
    """
    counted = [item for item in passes if item is not None]
    if not counted or len(counted) < len(passes):
        absent = len(passes) - len(counted)
        return GraphUse("unknown", f"counter absent in {absent} of {len(passes)} runs")
    replayed = int(sum(item.decode_graph for item in counted))
    eager = int(sum(item.decode_eager for item in counted))
    prefill = int(sum(item.prefill_graph for item in counted))

    def use(state: State, why: str = "") -> GraphUse:
        return GraphUse(state, why, replayed, eager)

    if not replayed + eager:
        return use("unknown", "the counter is there and counted no decode pass")
    if not wanted:
        if replayed or (prefill and not prefill_wanted):
            return use("not off", f"{replayed} decode and {prefill} prefill passes were replayed from graphs")
        against = [kind for kind in captures or () if kind != PREFILL or not prefill_wanted]
        if against:
            return use("not off", f"captured nonetheless: {', '.join(against)}")
        return use("off") if captures is not None else use("unknown", "the log could not be read")
    if replayed < REPLAYED_SHARE * (replayed + eager):
        return use("not replayed")
    if captures is None:
        return use("unknown", "the log could not be read, so what was captured is not known")
    if found.absent:
        return use("unknown", "; ".join(found.absent))
    return use("replayed")


@dataclass(frozen=True, slots=True)
class Suspects:
    """Why passes may have run without a graph.

    Attributes:
        blamed: what explains it.
        cleared: what was looked at and does not.
        unknown: what could not be looked at.
    """

    blamed: tuple[str, ...]
    cleared: tuple[str, ...]
    unknown: tuple[str, ...]


def suspects(arguments: Mapping[str, Any], largest_batch: int, captures: Captures | None) -> Suspects:
    """Batch sizes and padding, blamed or ruled out.

    Args:
        arguments: resolved, as of :func:`tokgate.sglang.http.resolved`.
        largest_batch: requests that ran at once at most.
        captures: as the log shows them.
    """
    blamed: list[str] = []
    cleared: list[str] = []
    unknown: list[str] = []
    if captures is not None and not captures:
        blamed.append("the log shows no capture at all")
    sizes = arguments.get("cuda_graph_decode_bs")
    if not sizes:
        unknown.append("batch sizes: the server does not report those that it captured")
        return Suspects(tuple(blamed), tuple(cleared), tuple(unknown))
    if largest_batch > max(sizes):
        blamed.append(f"batch size: up to {largest_batch} requests ran, captured up to {max(sizes)}")
    else:
        cleared.append(f"batch size: up to {largest_batch} requests ran, captured up to {max(sizes)}")
    padded = [size for size in range(1, min(largest_batch, max(sizes)) + 1) if size not in sizes]
    padding_off = arguments.get("disable_cuda_graph_padding")
    if not padded:
        cleared.append(f"padding: every size up to {min(largest_batch, max(sizes))} was captured itself")
    elif padding_off is None:
        unknown.append("padding: the server does not report whether it is on")
    elif padding_off:
        blamed.append(f"padding is off and sizes {', '.join(map(str, padded))} were not captured")
    else:
        cleared.append("padding: on, so sizes between those captured fit")
    return Suspects(tuple(blamed), tuple(cleared), tuple(unknown))
