"""Which rank the others waited for: late, slow, large, or silent; and which one only waited."""

from __future__ import annotations

import pytest

from tokgate.server.oddity import odd_captures
from tokgate.server.timeline import Capture

KIND = "target-verify"


def capture(rank: int, seconds: float | None, begun_s: float | None = 10.0, gb: float = 0.5) -> Capture:
    return Capture(KIND, f"TP{rank}", seconds, gb, 60.0, begun_s)


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_late_rank_is_named_and_those_that_waited_are_not(ranks: int) -> None:
    """Ranks leave a capture together: who came 6 s early took 6 s longer, and is not the slow one."""
    rows = [capture(rank, 8.0) for rank in range(ranks - 1)] + [capture(ranks - 1, 2.0, begun_s=16.0)]
    whom = "TP0" if ranks == 2 else "most ranks"
    assert odd_captures(rows) == [
        f"TP{ranks - 1} began target-verify graph capture 6.0 s after {whom}, which waited for it"
    ]


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_rank_that_ends_last_is_slow(ranks: int) -> None:
    rows = [capture(rank, 2.0) for rank in range(ranks - 1)] + [capture(ranks - 1, 8.0)]
    usual = "TP0 2" if ranks == 2 else "median 2"
    assert odd_captures(rows) == [f"TP{ranks - 1} took 8 s for target-verify graph capture, {usual} s"]


def test_of_two_ranks_the_larger_is_named_beside_the_other() -> None:
    rows = [capture(0, 2.0), capture(1, 2.0, gb=1.4)]
    assert odd_captures(rows) == ["TP1 took 1.4 GB for target-verify graph capture, TP0 0.5 GB"]


def test_equal_ranks_are_not_flagged() -> None:
    for ranks in (1, 2, 8):
        rows = [capture(rank, 1.40 + rank / 100, begun_s=10 + rank / 5) for rank in range(ranks)]
        assert odd_captures(rows, ranks=ranks) == []


def test_a_log_without_times_of_arrival_is_judged_by_seconds() -> None:
    rows = [capture(0, 2.0, None), capture(1, 8.0, None)]
    assert odd_captures(rows) == ["TP1 took 8 s for target-verify graph capture, TP0 2 s"]


def test_drafts_on_rank_0_alone_are_not_missing_and_a_target_is() -> None:
    drafts = [Capture("draft-decode", "TP0", 1.0), Capture("draft-extend", "TP0", 1.0)]
    assert odd_captures([capture(0, 2.0), capture(1, 2.0), *drafts], ranks=2) == []
    assert odd_captures([capture(0, 2.0), *drafts], ranks=2) == [
        "TP1 has no target-verify graph capture in the log"
    ]
    # Some of the drafts' ranks is neither what old nor what new versions print.
    some = [Capture("draft-extend", f"TP{rank}", 1.0) for rank in (0, 1, 2)]
    assert odd_captures([*(capture(rank, 2.0) for rank in range(4)), *some], ranks=4) == [
        "TP3 has no draft-extend graph capture in the log"
    ]


def test_a_rank_that_did_not_end() -> None:
    assert odd_captures([capture(0, 2.0), capture(1, None)]) == [
        "TP1 began target-verify graph capture and did not end it"
    ]
