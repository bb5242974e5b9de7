"""Traces of an H200 (SGLang 0.5.15.post1, EAGLE-3 at three steps, one request, 2026-11-29), and of the CPU engine."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.gate.runs import ROOT
from tokgate.analysis.cycles import Cycles, cycles
from tokgate.analysis.step_parts import NoCycles
from tokgate.cli import run
from tokgate.config.workloads import load_workloads
from tokgate.gate.cycle.net_gain import judge_net_gain
from tokgate.gate.runs import Measured
from tokgate.load.sample import Sample
from tokgate.report.explain_traces import explain_trace, rank_text
from tokgate.sglang.trace_spans import label
from tokgate.trace.timeline import read_timeline

ASSETS = ROOT / "tests/assets/traces"
GRAPHS = ("hyb-decode-c1", "hyb-prefill-c1")


@cache
def trace(name: str, category: str | None = None) -> Cycles:
    """Taken apart by all spans, or by those of one category alone."""

    def chosen(kind: str, text: str) -> str | None:
        return label(kind, text) if category in (None, kind) else None

    file = name if name.startswith("0.5") else f"0.5.15.post1-{name}"
    return cycles(read_timeline(ASSETS / f"{file}.trace.json.gz", chosen))


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


def test_the_cpu_engine_shows_passes_and_no_device() -> None:
    """SGLang 0.5.23 names its passes otherwise: VERIFY and DRAFT."""
    plain, drafted = trace("0.5.23-cpu-baseline"), trace("0.5.23-cpu-eagle3")
    assert (plain.on_device, drafted.on_device) == (False, False)
    assert list(plain.parts_ms) == ["decode"]
    assert list(drafted.parts_ms) == ["verify", "draft", "draft extend"]
    assert plain.bound is None
    assert plain.launches == ()
    # Recorded were eight passes after the prefill; the first cycle of EAGLE-3 was interrupted.
    assert (plain.count, drafted.count) == (7, 7)
    assert drafted.busy_ms == pytest.approx(sum(drafted.parts_ms.values()), rel=0.01)


def test_the_exchange_of_two_ranks_and_who_waits_in_it() -> None:
    """8 B over two H200s: the same kernels on both ranks, and one waits for the other in NCCL."""
    first, second = trace("0.5.15.post1-tp2-TP-0"), trace("0.5.15.post1-tp2-TP-1")
    for each in (first, second):
        assert each.launches == (3,) * 7
        assert each.kernels_outside == pytest.approx(65, abs=1)
    assert first.communication_ms == pytest.approx(0.57, abs=0.02)
    assert second.communication_ms > 2 * first.communication_ms
    # Without their exchange both ranks work for the same time.
    alone = [each.busy_ms - each.communication_ms for each in (first, second)]
    assert alone[0] == pytest.approx(alone[1], rel=0.01)


def test_a_cut_trace_is_said_to_be_cut_and_not_to_be_one_without_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = gzip.decompress((ASSETS / "0.5.15.post1-hyb-decode-c1.trace.json.gz").read_bytes())
    path = tmp_path / "cut.trace.json"
    path.write_bytes(whole[:20000])
    assert run(["explain", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("cut.trace.json: the file is cut off after 98 events: no operation of a device")
    assert "NVIDIA H200" in said
    assert "no device" not in said and "CPU" not in said
    path.write_bytes(whole[: int(len(whole) * 0.9)])
    assert run(["explain", str(path)]) == 0
    assert re.match(
        r"cut.trace.json: the file is cut off after \d+ events: verify cycle", capsys.readouterr().out
    )
    path.write_bytes(whole)
    assert run(["explain", str(path)]) == 0
    assert capsys.readouterr().out.startswith("cut.trace.json: verify cycle")


def test_explain_compares_ranks() -> None:
    paths = sorted(ASSETS.glob("*-tp2-TP-*.gz"))
    told = rank_text([explain_trace(path, path.name) for path in paths])
    assert told == (
        "ranks: exchange TP-0 0.57 ms, TP-1 1.24 ms a cycle; the least is nearest to the exchange itself, "
        "TP-1 waited for the others"
    )
    alone = [explain_trace(paths[0], paths[0].name)]
    other = explain_trace(ASSETS / "0.5.15.post1-hyb-decode-c1.trace.json.gz", "other-TP-1.trace.json.gz")
    assert rank_text(alone) == ""
    assert rank_text([*alone, other]) == ""


def test_what_a_gain_is_made_of_on_two_h200s(make_sample: Callable[..., Sample]) -> None:
    """The runs of 2026-11-29 (8 B, tp 2, one request): why their rate scatters by 20 %."""
    runs = {
        "tp2-baseline": ([277.741, 277.692, 277.539, 277.413, 277.502], None, None),
        "tp2-eagle3-graphs": (
            [415.165, 432.020, 317.829, 279.919, 380.352],
            [2.493] * 5,
            [6.004, 5.770, 7.843, 8.905, 6.554],
        ),
    }
    measured = {}
    for profile, (rates, lengths, lasted) in runs.items():
        samples = []
        for number, rate in enumerate(rates):
            metrics = {"decode_tok_s": rate}
            if lengths is not None and lasted is not None:
                metrics |= {"accept_length": lengths[number], "cycle_ms": lasted[number]}
            resolved = {"tp_size": 2, "speculative_num_steps": 3} if lengths else {"tp_size": 2}
            samples.append(make_sample(metrics, run=number, profile=profile, resolved=resolved))
        measured[profile] = Measured(tuple(samples), (), tuple(Path(f"{n}.json") for n in range(5)))
    workload = load_workloads(ROOT / "perf_tests/workloads.yaml", "gpu").get("chat-bs1")
    verdict = judge_net_gain(
        workload,
        measured["tp2-eagle3-graphs"],
        measured["tp2-baseline"],
        trace("0.5.15.post1-tp2-TP-0"),
    )
    assert verdict.headline == (
        "365.1 vs 277.6 tok/s without speculation, 1.32x (95 % CI 1.03..1.60, 5 runs, 1 launch)"
    )
    # A third of the cycle is in no kernel, and that third is what differs from run to run.
    assert (
        "of the effective cycle 7.02 ms: 3.85 ms verify, 0.42 ms draft, 0.26 ms draft extend, 2.46 ms (35 %) in "
        "no kernel (gaps: the GPU waits for the CPU to launch)"
    ) in verdict.body


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("decode", "of the effective cycle 3.52 ms: 1.40 ms verify, 0.28 ms draft, 0.18 ms draft extend, "
         "0.02 ms other kernels, 1.64 ms (46 %) in no kernel"),
        ("prefill", "of the effective cycle 6.31 ms: 1.31 ms verify, 0.28 ms draft, 0.18 ms draft extend, "
         "4.52 ms (72 %) in no kernel"),
    ],
)  # fmt: skip
def test_a_log_and_a_trace_of_one_server_explain_each_other(
    mode: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Attention mode prefill is 1.8 times slower here, and not for its kernels: the CPU plans each pass."""
    log = ROOT / f"tests/sglang/samples/0.5.15.post1/eagle3-hybrid-mode-{mode}.log"
    assert run(["explain", str(log), str(ASSETS / f"0.5.15.post1-hyb-{mode}-c1.trace.json.gz")]) == 0
    assert said in capsys.readouterr().out


def test_no_path_of_a_machine_is_in_an_asset() -> None:
    for path in ASSETS.glob("*.gz"):
        names = read_timeline(path, lambda _, name: name).spans
        assert not [name for name in names if name.startswith("/") or "/tmp/" in name], path


def test_assets_are_small() -> None:
    sizes = [path.stat().st_size for path in Path(ASSETS).glob("*.gz")]
    assert sizes
    assert max(sizes) < 200_000
