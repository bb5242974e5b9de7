"""Do all ranks do the same? Captures by rank and kind, missing ones, odd ones."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tokgate.report.explain_record import Capture, Explanation, rank_order
from tokgate.server.oddity import LATE_S

# A rank is odd when it is this far from the median of its kind. Capture times of equal ranks were seen to
# differ by a hundredth (1.40 to 1.42 s); the floors keep short captures from counting.
ODD_SHARE = 0.25
ODD_SECONDS = 0.5
ODD_GB = 0.1


@dataclass(frozen=True, slots=True)
class OddRank:
    """One rank that differs, and in what."""

    rank: str
    kind: str
    what: str


def odd_ranks(captures: Sequence[Capture]) -> list[OddRank]:
    """Ranks whose capture took unlike long or unlike much memory, or did not end where others did.

    With fewer than three ranks nobody can be called odd by the middle of the others. Ranks wait for each
    other in a capture: where one came late, its seconds are right and those of the others are the wait.
    """
    found = []
    for kind in dict.fromkeys(capture.kind for capture in captures):
        ended = [capture for capture in captures if capture.kind == kind and capture.ended]
        for capture in captures:
            if capture.kind == kind and not capture.ended and ended:
                found.append(OddRank(capture.rank, kind, "did not end, others did"))
        late = _late([capture for capture in captures if capture.kind == kind], kind)
        found += late or _odd(ended, kind, "seconds", "s", ODD_SECONDS)
        found += _odd(ended, kind, "used_gb", "GB", ODD_GB)
    return found


def _late(captures: Sequence[Capture], kind: str) -> list[OddRank]:
    begun = {capture.rank: capture.begun.timestamp() for capture in captures if capture.begun is not None}
    if len(begun) < 2:
        return []
    # Of two ranks, and of four, the earlier half: whoever is there waits.
    usual = statistics.median_low(begun.values())
    return [
        OddRank(rank, kind, f"began {at - usual:.0f} s after the others, which waited for it")
        for rank, at in begun.items()
        if at - usual > LATE_S
    ]


def _odd(ended: Sequence[Capture], kind: str, name: str, unit: str, floor: float) -> list[OddRank]:
    values = [(capture.rank, getattr(capture, name)) for capture in ended]
    values = [(rank, value) for rank, value in values if value is not None]
    if len(values) < 3:
        return []
    middle = statistics.median(value for _, value in values)
    bound = max(ODD_SHARE * abs(middle), floor)
    return [
        OddRank(rank, kind, f"{value:.2f} {unit}, median {middle:.2f} {unit}")
        for rank, value in values
        if abs(value - middle) > bound
    ]


def missing_ranks(record: Explanation) -> dict[str, list[str]]:
    """For each kind of capture the ranks without one, of those that the log shows or the arguments tell.

    From 0.5.12 on, the draft's captures are printed by rank 0 alone: that is not missing.
    """
    expected = expected_ranks(record)
    missing = {}
    for kind in dict.fromkeys(capture.kind for capture in record.captures):
        seen = {_tensor(capture.rank) for capture in record.captures if capture.kind == kind}
        if kind.startswith("draft") and seen == {"TP0"}:
            continue
        absent = [rank for rank in expected if rank not in seen]
        if absent:
            missing[kind] = absent
    return missing


def expected_ranks(record: Explanation) -> list[str]:
    """Tensor-parallel ranks: from ``tp_size`` when the log shows the arguments, else those seen."""
    size = record.arguments.get("tp_size")
    if isinstance(size, int) and size > 1:
        return [f"TP{rank}" for rank in range(size)]
    return sorted({_tensor(rank) for rank in record.ranks}, key=rank_order)


def _tensor(rank: str) -> str:
    return next((part for part in rank.split() if part.startswith("TP")), "TP0")
