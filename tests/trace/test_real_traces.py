"""Traces of an H200 (SGLang 0.5.15.post1, EAGLE-3 at three steps, one request, 2026-11-29)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.gate.runs import ROOT
from tokgate.analysis.cycles import Cycles, cycles
from tokgate.analysis.step_parts import NoCycles
from tokgate.sglang.trace_spans import label
from tokgate.trace.timeline import read_timeline

ASSETS = ROOT / "tests/assets/traces"
GRAPHS = ("hyb-decode-c1", "hyb-prefill-c1")


@cache
def trace(name: str, category: str | None = None) -> Cycles:
    """Taken apart by all spans, or by those of one category alone."""

    def chosen(kind: str, text: str) -> str | None:
        return label(kind, text) if category in (None, kind) else None

    return cycles(read_timeline(ASSETS / f"0.5.15.post1-{name}.trace.json.gz", chosen))


@pytest.mark.parametrize("name", GRAPHS)
def test_three_graphs_a_cycle(name: str) -> None:
    found = trace(name)
    assert found.launches == (3,) * 5
    assert found.launched_parts == {"verify": 5, "draft": 5, "draft extend": 5}


def test_none_without_graphs() -> None:
    found = trace("eager-c1")
    assert found.launches == (0,) * 5
    assert found.kernels_outside > 300


@pytest.mark.parametrize("name", GRAPHS)
def test_annotations_frames_and_graph_order_agree(name: str) -> None:
    """Three ways to tell the parts that know nothing of each other."""
    told = [trace(name, "user_annotation"), trace(name, "python_function"), trace(name, "")]
    assert [each.told_by for each in told] == ["spans", "spans", "graph order"]
    for each in told:
        assert each.launches == (3,) * 5
        assert each.busy_ms == pytest.approx(told[0].busy_ms, rel=0.01)
        # A frame holds the pass with what prepares and samples it, a graph the pass alone.
        assert each.parts_ms["verify"] == pytest.approx(told[0].parts_ms["verify"], rel=0.08)
        assert each.parts_ms["draft"] == pytest.approx(told[0].parts_ms["draft"], rel=0.08)
        assert each.parts_ms["draft extend"] == pytest.approx(told[0].parts_ms["draft extend"], abs=0.05)


def test_without_graphs_annotations_and_frames_agree() -> None:
    told = [trace("eager-c1", "user_annotation"), trace("eager-c1", "python_function")]
    assert told[0].parts_ms["verify"] == pytest.approx(told[1].parts_ms["verify"], rel=0.04)
    with pytest.raises(NoCycles):
        trace("eager-c1", "")


@pytest.mark.parametrize("name", [*GRAPHS, "eager-c1"])
def test_the_profiler_leaves_the_gpu_waiting_for_the_cpu(name: str) -> None:
    """With Python frames the CPU is several times slower than the GPU: 1.8 ms of kernels in 13 to 72 ms."""
    found = trace(name)
    assert found.bound == "CPU"
    assert found.waiting_ms > 0.9 * found.idle_ms
    assert 1.7 < found.busy_ms < 2.0
    assert found.busy_ms == pytest.approx(sum(found.parts_ms.values()), rel=0.01)


def test_no_path_of_a_machine_is_in_an_asset() -> None:
    for path in ASSETS.glob("*.gz"):
        names = read_timeline(path, lambda _, name: name).spans
        assert not [name for name in names if name.startswith("/") or "/tmp/" in name], path


def test_assets_are_small() -> None:
    sizes = [path.stat().st_size for path in Path(ASSETS).glob("*.gz")]
    assert sizes
    assert max(sizes) < 200_000
