"""The interval of a rate: known values, its coverage, and what it refuses."""

from __future__ import annotations

import pytest
from scipy.stats import binom, binomtest

from tokgate.analysis.rate import rate


def test_two_of_ten_as_in_the_message() -> None:
    assert rate(2, 10).text() == "20 %, 95 % CI 3..56 %"


@pytest.mark.parametrize(
    ("events", "trials"), [(0, 1), (1, 1), (0, 10), (2, 10), (10, 10), (7, 50), (1, 999)]
)
def test_as_scipy_gives_it(events: int, trials: int) -> None:
    got = rate(events, trials)
    wanted = binomtest(events, trials).proportion_ci(0.95, "exact")
    assert (got.low, got.high) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


@pytest.mark.parametrize("truth", [0.01, 0.1, 0.2, 0.5, 0.97])
@pytest.mark.parametrize("trials", [5, 10, 40])
def test_covers_the_true_rate_as_often_as_it_says(truth: float, trials: int) -> None:
    """Exactly, by summing over all outcomes: no simulation."""
    covered = sum(
        float(binom.pmf(events, trials, truth))
        for events in range(trials + 1)
        if rate(events, trials).low <= truth <= rate(events, trials).high
    )
    assert covered >= 0.95


def test_no_event_still_has_an_upper_bound() -> None:
    assert rate(0, 10).text() == "0 %, 95 % CI 0..31 %"
    # The rule of three: 3/n is where a one-sided 95 % bound lies; two-sided it is 3.7/n.
    assert rate(0, 1000).high == pytest.approx(3.7 / 1000, rel=0.01)
    assert rate(0, 1000).text() == "0 %, 95 % CI 0..0.37 %"


@pytest.mark.parametrize(("events", "trials"), [(-1, 10), (11, 10), (0, 0)])
def test_impossible_counts_are_refused(events: int, trials: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        rate(events, trials)


def test_a_level_must_be_one() -> None:
    with pytest.raises(ValueError, match="level"):
        rate(1, 2, 1.0)
