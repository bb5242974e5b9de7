"""Steps whose parts are known beforehand, taken apart again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.trace.kineto import Shape, steps
from tokgate.analysis.cycles import Cycles, cycles
from tokgate.analysis.step_parts import NoCycles
from tokgate.sglang.trace_spans import label
from tokgate.trace.timeline import read_timeline

SHAPE = Shape()


def taken_apart(tmp_path: Path, shape: Shape, number: int = 9, **how: int) -> Cycles:
    path = steps(shape, number, **how).write(tmp_path / "1-TP-0.trace.json.gz")
    return cycles(read_timeline(path, label))


@pytest.mark.parametrize("spans", ["0.5.15", "0.5.13", "frames", "none"])
def test_the_parts_of_a_cycle_are_found_in_every_versions_marks(tmp_path: Path, spans: str) -> None:
    found = taken_apart(tmp_path, replace(SHAPE, spans=spans))
    assert found.count == 8
    assert found.period_ms == pytest.approx(2.6)
    assert found.parts_ms == pytest.approx(
        {"verify": 2.0, "draft": 0.3, "draft extend": 0.15, "other kernels": 0.05}
    )
    assert found.busy_ms == pytest.approx(2.5)
    assert found.idle_ms == pytest.approx(0.1)
    assert found.launches == (3,) * 8
    assert set(found.launched_parts) == {"verify", "draft", "draft extend"}
    assert found.kernels_outside == 1
    assert found.bound == "GPU"
    assert found.told_by == ("graph order" if spans == "none" else "spans")


@pytest.mark.parametrize("spans", ["0.5.15", "0.5.13", "frames"])
def test_without_graphs_spans_alone_tell_the_parts(tmp_path: Path, spans: str) -> None:
    found = taken_apart(tmp_path, replace(SHAPE, spans=spans, graphs=False))
    assert found.launches == (0,) * 8
    assert found.parts_ms["verify"] == pytest.approx(2.0)
    assert found.parts_ms["draft"] == pytest.approx(0.3)
    assert found.kernels_outside == 3 * 3 + 1


def test_without_graphs_and_spans_nothing_is_made_up(tmp_path: Path) -> None:
    with pytest.raises(NoCycles, match="with_stack"):
        taken_apart(tmp_path, replace(SHAPE, spans="none", graphs=False))


@pytest.mark.parametrize("spans", ["0.5.15", "none"])
def test_an_eager_draft_extend_leaves_two_launches(tmp_path: Path, spans: str) -> None:
    found = taken_apart(tmp_path, replace(SHAPE, spans=spans, extend_graph=False))
    assert found.launches_per_step == 2
    assert set(found.launched_parts) == {"verify", "draft"}


@pytest.mark.parametrize("spans", ["0.5.15", "none"])
def test_a_baseline_launches_one_graph_a_step(tmp_path: Path, spans: str) -> None:
    found = taken_apart(tmp_path, replace(SHAPE, spans=spans, speculative=False))
    assert found.launches == (1,) * 8
    assert not found.speculative
    assert found.parts_ms == pytest.approx({"decode": 2.0, "other kernels": 0.05})


def test_frames_of_a_baseline_tell_whole_steps(tmp_path: Path) -> None:
    found = taken_apart(tmp_path, replace(SHAPE, spans="frames", speculative=False, graphs=False))
    assert found.period_ms == pytest.approx(2.15)
    assert found.parts_ms == pytest.approx({"step": 2.05})


def test_a_cycle_with_a_prefill_in_it_is_left_out(tmp_path: Path) -> None:
    found = taken_apart(tmp_path, SHAPE, prefill_at=4)
    assert (found.count, found.left_out) == (7, 1)
    assert found.period_ms == pytest.approx(2.6)
    assert "prefill" not in found.parts_ms


def test_who_waits_for_whom(tmp_path: Path) -> None:
    slow = replace(SHAPE, gap=1500.0)
    ahead = taken_apart(tmp_path, slow)
    late = taken_apart(tmp_path, replace(slow, cpu_late=True))
    assert (ahead.bound, late.bound) == ("GPU", "CPU")
    assert ahead.queued_ms == pytest.approx(1.5)
    assert late.waiting_ms == pytest.approx(1.5)


def test_the_share_of_communication(tmp_path: Path) -> None:
    found = taken_apart(tmp_path, replace(SHAPE, communication=500.0))
    assert found.communication_ms == pytest.approx(0.5)
    assert found.parts_ms["verify"] == pytest.approx(2.0)
    assert taken_apart(tmp_path, SHAPE).communication_ms == 0


def test_one_pass_is_no_cycle(tmp_path: Path) -> None:
    with pytest.raises(NoCycles, match="1 pass"):
        taken_apart(tmp_path, SHAPE, 1)


def test_a_pass_of_the_draft_that_borrows_the_targets_mode_is_the_drafts(tmp_path: Path) -> None:
    made = steps(SHAPE, 9)
    for event in [e for e in made.events if e["name"] == "draft_extend"]:
        made.span("user_annotation", "step[TARGET_VERIFY bs=1]", event["ts"] + 0.5, event["ts"] + 18)
    found = cycles(read_timeline(made.write(tmp_path / "1-TP-0.trace.json.gz"), label))
    assert found.count == 8
    assert found.parts_ms["draft extend"] == pytest.approx(0.15)
