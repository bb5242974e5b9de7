"""Two ranks' exchanges in a trace: how long each lasted, and whether the other rank began it later."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

LONG_US = 100.0
"""An exchange that lasts longer than this is a wait: on two H200s the median is 7 us."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The exchanges of a rank that waited, beside those of the rank that it waited for.

    Attributes:
        count: exchanges in all.
        whole_ms: in all of them.
        long: how many are longer than :data:`LONG_US`.
        long_ms: in those.
        explained_ms: of that, how much the other rank began later.
        row: how many of the first ones are long without a short one between them: a pass without a graph.
        row_ms: in those.
        rest_ms, other_rest_ms: in all after the row, here and on the other rank.
    """

    count: int
    whole_ms: float
    long: int
    long_ms: float
    explained_ms: float
    row: int
    row_ms: float
    rest_ms: float
    other_rest_ms: float


def exchanges(file: Path) -> list[tuple[float, float]]:
    """Begin and length of NCCL's kernels in a trace, us, in their order."""
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    own = [e for e in events if e.get("cat") == "kernel" and "nccl" in e["name"].lower()]
    return sorted((e["ts"], e["dur"]) for e in own)


def waits(waiting: Path, other: Path) -> Waits:
    """Compare two ranks' traces of the same steps.

    Raises:
        ValueError: they do not have the same exchanges.
    """
    here, there = exchanges(waiting), exchanges(other)
    if len(here) != len(there):
        raise ValueError(f"{waiting.name} has {len(here)} exchanges, {other.name} {len(there)}")
    pairs = list(zip(here, there, strict=True))
    long = [(own, later) for own, later in pairs if own[1] > LONG_US]
    row = next((number for number, own in enumerate(here) if own[1] <= LONG_US), len(here))
    return Waits(
        count=len(here),
        whole_ms=sum(length for _, length in here) / 1e3,
        long=len(long),
        long_ms=sum(own[1] for own, _ in long) / 1e3,
        explained_ms=sum(min(max(later[0] - own[0], 0.0), own[1]) for own, later in long) / 1e3,
        row=row,
        row_ms=sum(length for _, length in here[:row]) / 1e3,
        rest_ms=sum(length for _, length in here[row:]) / 1e3,
        other_rest_ms=sum(length for _, length in there[row:]) / 1e3,
    )
