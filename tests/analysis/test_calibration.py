"""Calibration: resumable, pooled, stored with every run."""

from __future__ import annotations

import datetime
import math

import numpy as np
import pytest
import yaml

from tokgate.analysis.calibration import Calibration, calibrate, from_document, to_document
from tokgate.errors import LoadFault, SampleFault

EMPTY = Calibration("nvidia-h200", "baseline", "chat-bs1", "output_tok_s", "tok/s", "higher")
START = "2026-01-05T10:00:00+00:00"


class Host:
    """An emulated host: launches scatter by 1 %, runs by 2 %; dies when told to."""

    def __init__(self, seed: int = 0, dies_at: int | None = None, scatter: float = 1.0) -> None:
        self.rng = np.random.default_rng(seed)
        self.blocks = 0
        self.dies_at = dies_at
        self.scatter = scatter

    def __call__(self) -> dict[str, tuple[list[float], list[float]]]:
        if self.blocks == self.dies_at:
            raise LoadFault("the server went away")
        self.blocks += 1
        sides = [
            900 * np.exp(self.scatter * (self.rng.normal(0, 0.01) + self.rng.normal(0, 0.02, 4)))
            for _ in range(2)
        ]
        return {"speed": (sides[0].tolist(), sides[1].tolist())}


def run(
    start: Calibration, host: Host, blocks: int = 20, at: str = START
) -> tuple[Calibration, list[Calibration]]:
    saved: list[Calibration] = []

    def save(state) -> None:
        saved.append(state["speed"])

    done = calibrate({"speed": start}, blocks=blocks, measure_block=host, save=save, started_at=at)
    return done["speed"], saved


def test_a_session_finds_the_scatter_and_saves_every_block():
    done, saved = run(EMPTY, Host())
    assert [len(item.sessions[0].blocks) for item in saved] == list(range(1, 21))
    assert saved[-1] == done
    history = done.history()
    truth = math.sqrt(2 * (0.01**2 + 0.02**2 / 3))
    assert history is not None and history.blocks == 20
    assert 0.5 * truth < history.s0 < 1.6 * truth


def test_an_interrupted_session_is_taken_up_where_it_stopped():
    whole, _ = run(EMPTY, Host(seed=4))
    saved: list = []
    host = Host(seed=4, dies_at=7)
    with pytest.raises(LoadFault):
        calibrate({"speed": EMPTY}, blocks=20, measure_block=host, save=saved.append, started_at=START)
    assert len(saved[-1]["speed"].sessions[0].blocks) == 7
    host.dies_at = None
    again, _ = run(saved[-1]["speed"], host)
    assert again == whole
    assert host.blocks == 20


def test_sessions_are_pooled_and_a_later_one_does_not_touch_the_first():
    first, _ = run(EMPTY, Host(), blocks=10)
    both, _ = run(first, Host(seed=1, scatter=3.0), blocks=10, at="2026-01-06T10:00:00+00:00")
    assert both.sessions[0] == first.sessions[0]
    squares = [item.difference**2 for item in both.blocks()]
    assert both.history().s0 == pytest.approx(math.sqrt(sum(squares) / 20))
    assert both.history().s0 > first.history().s0


def test_the_figures_can_be_made_again_from_the_file():
    done, _ = run(EMPTY, Host())
    text = yaml.safe_dump(to_document(done))
    read = from_document(yaml.safe_load(text))
    assert read == done
    assert read.history() == done.history()


def test_missing_thin_and_old_calibrations_are_told():
    now = datetime.datetime(2026, 1, 10, tzinfo=datetime.UTC)
    fresh, _ = run(EMPTY, Host())
    thin, _ = run(EMPTY, Host(), blocks=5)
    assert fresh.remarks(now) == ()
    assert "no calibration" in EMPTY.remarks(now)[0]
    assert "5 A/A blocks of 20" in thin.remarks(now)[0]
    later = now + datetime.timedelta(days=40)
    assert "44 days old (limit 30)" in fresh.remarks(later)[0] or "45 days old" in fresh.remarks(later)[0]


def test_without_any_scatter_there_is_no_history():
    done, _ = run(EMPTY, Host(scatter=0.0))
    assert done.history() is None
    assert EMPTY.history() is None


@pytest.mark.parametrize("block", [{"speed": ([1.0], [math.nan])}, {}, {"other": ([1.0], [1.0])}])
def test_a_block_that_is_no_measurement_is_not_stored(block):
    saved: list = []
    with pytest.raises(SampleFault):
        calibrate(
            {"speed": EMPTY}, blocks=2, measure_block=lambda: block, save=saved.append, started_at=START
        )
    assert saved == []


def test_metrics_share_blocks_and_resume_from_the_last_that_all_have():
    """Killed between two files, one metric has a block that the other lacks: it is measured again."""
    latency = Calibration("nvidia-h200", "baseline", "chat-bs1", "ttft_s_p50", "s", "lower")
    host = Host(seed=2)

    def both():
        runs = host()["speed"]
        return {"speed": runs, "ttft": tuple([1 / x for x in side] for side in runs)}

    saved: list = []
    calibrate(
        {"speed": EMPTY, "ttft": latency}, blocks=3, measure_block=both, save=saved.append, started_at=START
    )
    torn = {"speed": saved[2]["speed"], "ttft": saved[1]["ttft"]}
    done = calibrate(torn, blocks=4, measure_block=both, save=saved.append, started_at=START)
    assert host.blocks == 3 + 2
    assert [len(done[key].sessions[0].blocks) for key in ("speed", "ttft")] == [4, 4]
    assert done["ttft"].history().s0 == pytest.approx(done["speed"].history().s0, rel=0.2)


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


def test_a_session_without_blocks_or_time_is_refused():
    with pytest.raises(ValueError, match="at least one block"):
        run(EMPTY, Host(), blocks=0)
    with pytest.raises(SampleFault, match="time zone"):
        run(EMPTY, Host(), at="2026-01-05T10:00:00")
