"""Ranks that differ: which one a start-up, or its graph captures, waited for.

Ranks meet at barriers, so a slow rank makes all of them slow: the one that took longest is as a rule the
one that waited longest. What tells is who came last, and memory. See docs/decisions/odd-rank.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median_high

from tokgate.server.timeline import Capture

LATE_S = 2.0
"""A rank that begins a capture this much after the others is late, seconds."""
# The log gives hundredths of a GB, and "free memory" around a capture is shared with others' allocations.
_ODD_GB = 0.02
_ODD_S = 0.1
FIRST = "TP0"


def odd_captures(captures: Iterable[Capture], factor: float = 1.5, ranks: int = 0) -> list[str]:
    """Ranks whose capture differs from the others of its kind, in words.

    Args:
        factor: a rank is odd when its seconds or its memory exceed those usual for its kind by this factor,
            or when it has no capture of a kind that most ranks have. Usual is the median; of two ranks, the
            other.
        ranks: how many there are, where that is known: one that printed nothing at all is then missed too.
    """
    table: dict[str, dict[str, Capture]] = {}
    for capture in captures:
        table.setdefault(capture.kind, {})[capture.rank] = capture
    known = {rank for row in table.values() for rank in row}
    if ranks > 1 and table:
        known |= {f"TP{number}" for number in range(ranks)}
    names = sorted(known, key=lambda rank: (len(rank), rank))
    odd = []
    for kind, row in table.items():
        missing = [rank for rank in names if rank not in row]
        if missing and not only_first(kind, row) and (kind.startswith("target") or len(missing) < len(row)):
            odd.append(f"{', '.join(missing)} has no {kind} graph capture in the log")
        for rank, capture in row.items():
            if capture.seconds is None:
                odd.append(f"{rank or 'the only rank'} began {kind} graph capture and did not end it")
        odd += [*_late(kind, row), *_slow(kind, row, factor), *_large(kind, row, factor)]
    return odd


def only_first(kind: str, row: Mapping[str, Capture]) -> bool:
    """Whether rank 0 alone printed a draft's capture, as every SGLang from 0.5.12 on does."""
    return kind.startswith("draft") and set(row) == {FIRST}


def _late(kind: str, row: Mapping[str, Capture]) -> list[str]:
    begun = {rank: c.begun_s for rank, c in row.items() if c.begun_s is not None}
    found = []
    for rank, own in begun.items():
        usual = _usual(rank, begun)
        if usual is not None and own - usual > LATE_S:
            found.append(
                f"{rank} began {kind} graph capture {own - usual:.1f} s after {_whom(rank, begun)}, "
                f"which waited for it"
            )
    return found


def _slow(kind: str, row: Mapping[str, Capture], factor: float) -> list[str]:
    took = {rank: c.seconds for rank, c in row.items() if c.seconds is not None}
    ended = {
        rank: c.begun_s + c.seconds
        for rank, c in row.items()
        if c.seconds is not None and c.begun_s is not None
    }
    found = []
    for rank, own in took.items():
        usual = _usual(rank, took)
        if usual is None or own <= factor * usual + _ODD_S:
            continue
        end = _usual(rank, ended) if rank in ended else None
        # It took longer because it came earlier, and left with the others: it waited for them.
        if end is not None and ended[rank] - end <= _ODD_S + (factor - 1) * usual:
            continue
        found.append(f"{rank} took {own:g} s for {kind} graph capture, {_words(rank, took, usual)} s")
    return found


def _large(kind: str, row: Mapping[str, Capture], factor: float) -> list[str]:
    sizes = {rank: c.gb for rank, c in row.items() if c.gb is not None}
    found = []
    for rank, own in sizes.items():
        usual = _usual(rank, sizes)
        if usual is not None and own > factor * usual + _ODD_GB:
            found.append(f"{rank} took {own:g} GB for {kind} graph capture, {_words(rank, sizes, usual)} GB")
    return found


def _usual(rank: str, values: Mapping[str, float]) -> float | None:
    """The median of all, or of two ranks the other's; ``None`` for a rank that is alone."""
    if len(values) < 2:
        return None
    if len(values) == 2:
        return next(value for other, value in values.items() if other != rank)
    return median_high(values.values())


def _whom(rank: str, values: Mapping[str, float]) -> str:
    return next(other for other in values if other != rank) if len(values) == 2 else "most ranks"


def _words(rank: str, values: Mapping[str, float], usual: float) -> str:
    return f"{_whom(rank, values)} {usual:g}" if len(values) == 2 else f"median {usual:g}"
