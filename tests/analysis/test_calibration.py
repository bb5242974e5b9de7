"""Calibration: resumable, pooled, stored with every run."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tokgate.analysis.calibration import AABlock, Calibration, Session
from tokgate.analysis.calibration_file import SUFFIX, read_calibration, write_calibration
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
    assert known.differences({"model": "8b", "profile_digest": "p"}) == []
    assert known.differences({"model": "8b"}) == []
    assert known.differences({"model": "1b", "profile_digest": "p"}) == ["model: calibrated 8b, now 1b"]
    # What it does not say of itself is no match for whatever is asked.
    assert known.differences({"model": "8b", "block": "4 runs"}) == ["block: calibrated not said, now 4 runs"]


def test_sessions_are_pooled_and_a_later_one_does_not_touch_the_first():
    first = EMPTY.with_session(session(blocks=10))
    both = first.with_session(session(1, 10, "2026-01-06T10:00:00+00:00", 3.0))
    assert both.sessions[0] == first.sessions[0]
    squares = [item.difference**2 for item in both.blocks()]
    assert both.history().s0 == pytest.approx(math.sqrt(sum(squares) / 20))
    assert both.history().s0 > first.history().s0


def test_the_figures_can_be_made_again_from_the_file(tmp_path):
    done = EMPTY.with_session(session())
    write_calibration(tmp_path / "c.yaml", done)
    read = read_calibration(tmp_path / "c.yaml")
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
    early = now - datetime.timedelta(days=40)
    assert "days ahead of this host's clock: its age is not known" in fresh.remarks(early)[0]
    assert "44 days old (limit 30)" in fresh.remarks(later)[0] or "45 days old" in fresh.remarks(later)[0]


def test_without_any_scatter_there_is_no_history():
    done = EMPTY.with_session(session(scatter=0.0))
    assert done.history() is None
    assert EMPTY.history() is None


def stored(folder: Path, *sessions: Session) -> Path:
    path = folder / f"output_tok_s{SUFFIX}"
    done = replace(EMPTY, identity={"model": "8b", "block": "4 runs an arm, together"})
    for item in sessions:
        done = done.with_session(item)
    write_calibration(path, done)
    return path


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ("schema: 1", "schema: 2", "schema"),
        ("better: higher", "better: up", "better"),
        ("first: [", "first: []\n    also: [", "first"),
        ("metric:", "extra: 1\nmetric:", "extra: unknown key"),
        ("unit: tok/s", "unit: tok/s\nunit: ms", "given twice"),
        ("first: [", "first: [.nan, ", "digest does not fit"),
    ],
)
def test_a_file_that_is_no_calibration_is_refused(tmp_path, was, now, message):
    path = stored(tmp_path, session(blocks=2))
    good = path.read_text()
    assert was in good
    path.write_text(good.replace(was, now))
    with pytest.raises(SampleFault, match=message) as caught:
        read_calibration(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    "spoilt",
    [
        Session("yesterday", (AABlock((1.0,), (1.0,)),)),
        Session(START, (AABlock((0.0,), (1.0,)),)),
        Session(START, (AABlock((math.nan,), (1.0,)),)),
    ],
)
def test_a_session_with_a_fitting_digest_that_cannot_have_been_measured_is_refused(tmp_path, spoilt):
    write_calibration(tmp_path / "c.yaml", replace(EMPTY, sessions=(spoilt,)))
    with pytest.raises(SampleFault, match="not a calibration"):
        read_calibration(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("first: [", "first: [900.0, "),
        ("- started_at: '2026-01-05", "- started_at: '2026-02-05"),
        ("unit: tok/s", "unit: ms"),
        ("profile: baseline", "profile: eagle3-graphs"),
        ("better: higher", "better: lower"),
        ("model: 8b", "model: 1b"),
        (", block: '4 runs an arm, together'", ""),
    ],
)
def test_a_calibration_edited_by_hand_is_refused_with_its_line(tmp_path, was, now):
    path = stored(tmp_path, session(blocks=3))
    good = path.read_text()
    assert read_calibration(path).history().blocks == 3
    assert was in good, good
    path.write_text(good.replace(was, now, 1))
    line = next(n for n, text in enumerate(good.splitlines(), 1) if "started_at" in text)
    with pytest.raises(SampleFault, match="was edited after tokgate calibrate wrote it") as caught:
        read_calibration(path)
    assert str(caught.value).startswith(f"{path}:{line}: the session of 2026-0")
    assert "remove the file, then tokgate calibrate run" in str(caught.value)


def test_blocks_taken_out_or_pasted_are_found(tmp_path):
    """A thin calibration is told as thin, whoever copies its blocks."""
    path = stored(tmp_path, session(blocks=2))
    good = path.read_text()
    at, end = good.index("  - first"), good.index("  digest")
    one = good[at : end - 1].split("  - first")[1]
    path.write_text(good[:end] + f"  - first{one}" + good[end:])
    with pytest.raises(SampleFault, match="edited"):
        read_calibration(path)
    path.write_text(good[:at] + f"  - first{one}" + good[end:])
    with pytest.raises(SampleFault, match="edited"):
        read_calibration(path)


def test_a_session_pasted_twice_is_refused_and_another_is_not(tmp_path):
    path = stored(tmp_path, session(blocks=2), session(1, 2, "2026-01-06T10:00:00+00:00"))
    good = path.read_text()
    assert read_calibration(path).history().blocks == 4
    at = good.index("- started_at: '2026-01-06")
    path.write_text(good + good[at:])
    with pytest.raises(
        SampleFault, match=r"2026-01-06T10:00:00\+00:00 is there twice, first on line \d+: remove"
    ):
        read_calibration(path)


def test_a_session_moved_from_another_file_is_refused(tmp_path):
    here = stored(tmp_path, session(blocks=2))
    other = tmp_path / "other.yaml"
    write_calibration(
        other, replace(EMPTY, metric="ttft_s_p50").with_session(session(1, 2, "2026-01-06T10:00:00+00:00"))
    )
    moved = other.read_text()
    here.write_text(here.read_text() + moved[moved.index("- started_at") :])
    with pytest.raises(SampleFault, match="the session of 2026-01-06"):
        read_calibration(here)


def test_a_digest_that_was_taken_out_is_refused(tmp_path):
    path = stored(tmp_path, session(blocks=2))
    path.write_text("\n".join(line for line in path.read_text().splitlines() if "digest:" not in line))
    with pytest.raises(SampleFault, match=r"sessions\[0\].digest: is missing"):
        read_calibration(path)


def test_a_session_without_a_time_zone_is_refused():
    with pytest.raises(SampleFault, match="time zone"):
        EMPTY.with_session(session(at="2026-01-05T10:00:00"))
