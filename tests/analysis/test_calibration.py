"""Calibration: resumable, pooled, stored with every run."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace

import numpy as np
import pytest
import yaml

from tokgate.analysis.calibration import AABlock, Calibration, Session, from_document, to_document
from tokgate.errors import SampleFault

EMPTY = Calibration("nvidia-h200", "baseline", "chat-bs1", "output_tok_s", "tok/s", "higher")
START = "2026-01-05T10:00:00+00:00"


def session(seed: int = 0, blocks: int = 20, at: str = START, scatter: float = 1.0) -> Session:
    """Launches scatter by 1 %, runs by 2 %."""
    rng = np.random.default_rng(seed)

    def launch() -> tuple[float, ...]:
        runs = 900 * np.exp(scatter * (rng.normal(0, 0.01) + rng.normal(0, 0.02, 4)))
        return tuple(runs.tolist())

    return Session(at, tuple(AABlock(launch(), launch()) for _ in range(blocks)))


def test_a_session_finds_the_scatter():
    history = EMPTY.with_session(session()).history()
    truth = math.sqrt(2 * (0.01**2 + 0.02**2 / 3))
    assert history is not None and history.blocks == 20
    assert 0.5 * truth < history.s0 < 1.6 * truth


def test_a_session_that_grew_takes_the_place_of_itself():
    part, whole = session(blocks=7), session(blocks=20)
    assert EMPTY.with_session(part).with_session(whole) == EMPTY.with_session(whole)


def test_a_calibration_of_something_else_says_what_differs():
    known = replace(EMPTY, identity={"model": "8b", "profile_digest": "p"})
    assert known.differences({"model": "8b", "profile_digest": "p", "more": "x"}) == []
    assert known.differences({"model": "1b", "profile_digest": "p"}) == ["model: calibrated 8b, now 1b"]


def test_sessions_are_pooled_and_a_later_one_does_not_touch_the_first():
    first = EMPTY.with_session(session(blocks=10))
    both = first.with_session(session(1, 10, "2026-01-06T10:00:00+00:00", 3.0))
    assert both.sessions[0] == first.sessions[0]
    squares = [item.difference**2 for item in both.blocks()]
    assert both.history().s0 == pytest.approx(math.sqrt(sum(squares) / 20))
    assert both.history().s0 > first.history().s0


def test_the_figures_can_be_made_again_from_the_file():
    done = EMPTY.with_session(session())
    text = yaml.safe_dump(to_document(done))
    read = from_document(yaml.safe_load(text))
    assert read == done
    assert read.history() == done.history()


def test_missing_thin_and_old_calibrations_are_told():
    now = datetime.datetime(2026, 1, 10, tzinfo=datetime.UTC)
    fresh = EMPTY.with_session(session())
    thin = EMPTY.with_session(session(blocks=5))
    assert fresh.remarks(now) == ()
    assert "no calibration" in EMPTY.remarks(now)[0]
    assert "5 A/A blocks of 20" in thin.remarks(now)[0]
    later = now + datetime.timedelta(days=40)
    assert "44 days old (limit 30)" in fresh.remarks(later)[0] or "45 days old" in fresh.remarks(later)[0]


def test_without_any_scatter_there_is_no_history():
    done = EMPTY.with_session(session(scatter=0.0))
    assert done.history() is None
    assert EMPTY.history() is None


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"better": "up"},
        {"sessions": [{"started_at": START, "blocks": [{"first": [], "second": [1.0]}]}]},
        {"sessions": [{"started_at": "yesterday", "blocks": []}]},
        {"sessions": [{"started_at": START, "blocks": [{"first": [0.0], "second": [1.0]}]}]},
        {"extra": 1},
    ],
)
def test_a_file_that_is_no_calibration_is_refused(change):
    with pytest.raises(SampleFault):
        from_document(to_document(EMPTY) | change)


def test_a_session_without_a_time_zone_is_refused():
    with pytest.raises(SampleFault, match="time zone"):
        EMPTY.with_session(session(at="2026-01-05T10:00:00"))
