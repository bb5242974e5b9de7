"""Equal, faster, slower or open; what could have been seen; verify passes request by request."""

from __future__ import annotations

import numpy as np
import pytest

from tokgate.analysis.difference import compare_counts, difference
from tokgate.analysis.interval import ratio_interval
from tokgate.load.sample import Request

QUIET = [100.0, 100.2, 99.8, 100.1, 99.9]
NOISY = [100.0, 112.0, 88.0, 105.0, 95.0]


def test_against_a_limit() -> None:
    assert difference(QUIET, QUIET).against(0.03) == "equal"
    assert difference([v * 0.99 for v in QUIET], QUIET).against(0.03) == "equal"
    assert difference([v * 0.9 for v in QUIET], QUIET).against(0.03) == "slower"
    assert difference([v * 1.1 for v in QUIET], QUIET).against(0.03) == "faster"
    assert difference(NOISY, NOISY).against(0.03) == "open"
    assert difference([100.0], QUIET).against(0.03) == "open"


def test_the_smallest_detectable_difference_is_found_that_often() -> None:
    """Simulated: a loss of that size is found with probability 1 - beta, for any noise."""
    rng = np.random.default_rng(5)
    for scatter, runs in ((0.01, 6), (0.09, 6), (0.03, 12)):
        least = np.median(
            [
                difference(*np.exp(rng.normal(0, scatter, (2, runs)))).smallest_detectable or 0
                for _ in range(200)
            ]
        )
        found = [
            ratio_interval((1 - least) * np.exp(one), np.exp(other)).below_one
            for one, other in rng.normal(0, scatter, (400, 2, runs))
        ]
        assert 0.9 < np.mean(found) < 1


def test_a_single_run_says_nothing_of_what_could_be_seen() -> None:
    found = difference([100.0], QUIET)
    assert found.smallest_detectable is None
    assert "unknown" in found.detectable_text()
    assert difference([100.0, 100.0], [50.0, 50.0]).smallest_detectable == 0


def request(index: int, verifies: int | None, ids: tuple[int, ...] = (1, 2)) -> Request:
    return Request(index=index, outcome="ok", intended_s=0.0, verify_count=verifies, output_ids=ids)


@pytest.mark.parametrize(
    ("other", "field", "value"),
    [
        ([[request(0, 5), request(1, 7)]] * 2, "equal", True),
        ([[request(0, 5), request(1, 8)]] * 2, "differing", (1,)),
        ([[request(0, 5), request(1, 8, (1, 3))]] * 2, "other_output", (1,)),
        ([[request(0, 5), request(1, 7)], [request(0, 5), request(1, 8)]], "restless", (1,)),
        ([[request(0, 5), request(1, None)]] * 2, "unreported", 2),
        ([[request(0, 5)]] * 2, "unreported", 1),
    ],
)
def test_counts(other: list[list[Request]], field: str, value: object) -> None:
    found = compare_counts([[request(0, 5), request(1, 7)]] * 2, other)
    assert getattr(found, field) == value
    assert found.equal is (field == "equal")


def test_nothing_compared_is_not_equal() -> None:
    assert not compare_counts([], []).equal
