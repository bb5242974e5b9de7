"""Do all ranks do the same? Captures by rank and kind, missing ones, odd ones."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tokgate.report.explain_record import Capture, Explanation, rank_order

# A rank is odd when it is this far from the median of its kind. Capture times of equal ranks were seen to
# differ by a hundredth (1.40 to 1.42 s); the floors keep short captures from counting.
ODD_SHARE = 0.25
ODD_SECONDS = 0.5
ODD_GB = 0.25


@dataclass(frozen=True, slots=True)
class OddRank:
    """One rank that differs, and in what."""

    rank: str
    kind: str
    what: str


def odd_ranks(captures: Sequence[Capture]) -> list[OddRank]:
    """Ranks whose capture took unlike long or unlike much memory, or did not end where others did.

    With fewer than three ranks nobody can be called odd by the middle of the others.
    """
    found = []
    for kind in dict.fromkeys(capture.kind for capture in captures):
        ended = [capture for capture in captures if capture.kind == kind and capture.ended]
        for capture in captures:
            if capture.kind == kind and not capture.ended and ended:
                found.append(OddRank(capture.rank, kind, "did not end, others did"))
        for name, unit, floor in (("seconds", "s", ODD_SECONDS), ("used_gb", "GB", ODD_GB)):
            found += _odd(ended, kind, name, unit, floor)
    return found


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
