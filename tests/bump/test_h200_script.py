"""benchmarks.bump.h200: what it plants, what it takes for right, and that a delay that is not there is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bump.comparison import Comparison, foreseen
from benchmarks.bump.planted import Delay, delays, engines
from benchmarks.bump.simulation import ask_of
from tokgate.config.engine import Engine


def test_delays_are_milliseconds_on_the_cpu_or_the_gpu() -> None:
    assert delays("6,0.25@gpu") == (Delay(6.0), Delay(0.25, "gpu"))
    assert delays("none") == ()


def test_a_delay_is_planted_by_the_environment_in_front_of_the_engines_own() -> None:
    old = Engine("old", "gpu", "0.5.13.post1", pythonpath=("/site",), env={"A": "1"})
    found = engines(old, Engine("new", "gpu", "0.5.15.post1"), delays("6,0.25@gpu"))
    assert list(found) == ["old", "new", "again", "slow", "slightly"]
    assert found["again"] is old
    slightly = found["slightly"]
    assert Path(slightly.pythonpath[0], "sitecustomize.py").is_file() and slightly.pythonpath[1:] == (
        "/site",
    )
    assert slightly.env == {"A": "1", "TOKGATE_DELAY_MS": "0.25", "TOKGATE_DELAY_ON": "gpu"}


def test_what_blocks_find_is_what_the_dry_run_says() -> None:
    """13 %: the recorded A/A blocks of the 1.1 B pair; figures as `tokgate bump --dry-run` prints them."""
    ask = ask_of(8, profiles=("baseline",), blocks=3)
    found = [foreseen(ask, blocks, 0.13) for blocks in (2, 3, 4)]
    assert found[0] is None
    assert [f"{100 * (value or 0):.0f}" for value in found[1:]] == ["84", "55"]


@pytest.mark.parametrize(
    ("text", "missing"), [("tokgate: planted a delay of 6 ms", []), ("ready", ["a.log"])]
)
def test_a_server_without_its_delay_is_told(text: str, missing: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(text)
    (tmp_path / "a.log.1").write_text("tokgate: planted a delay of 6 ms")
    item = Comparison("slow", ask_of(8), None, Delay(6.0), tmp_path)  # type: ignore[arg-type]
    assert item.unplanted() == missing


def test_a_delayed_server_without_a_log_is_told(tmp_path: Path) -> None:
    item = Comparison("slow", ask_of(8), None, Delay(6.0), tmp_path)  # type: ignore[arg-type]
    assert item.unplanted() == [f"{tmp_path}: no log"]
    item.delay = None
    assert item.unplanted() == [], "the control: nothing was planted"
