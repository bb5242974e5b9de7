"""The table of the gate's own runs: what it says of planted rows, and that the page holds that of the kept ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.noise import gate_runs
from tokgate.load.sample import Void

ROOT = Path(__file__).parents[2]


def row(case: str, tok_s: float, slowdown: float, busy: float, void: tuple[str, ...] = ()) -> dict:
    return {
        "case": case,
        "tok_s": tok_s,
        "scheduler_cpu_slowdown": slowdown,
        "gpu_busy_share": busy,
        "void": list(void),
    }


def test_slow_runs_are_counted_by_cause_and_by_whether_the_gpu_waits() -> None:
    waits = [row("a", 100 / s, s, 0.7) for s in (1.0, 1.02, 1.4, 1.6)] + [row("a", 80, 1.0, 0.7, ("steal",))]
    busy = [row("b", 100, s, 1.0) for s in (1.0, 1.5, 1.8)] + [row("b", 80, 1.5, 1.0)]
    found = gate_runs.groups([*waits, *busy, row("alone", 1, 2, 0.1)])
    assert (found["the GPU waits"].slow, found["the GPU waits"].named, found["the GPU waits"].other) == (
        3,
        2,
        1,
    )
    assert found["the GPU waits"].quick_named == 0
    assert (found["the GPU is busy"].slow, found["the GPU is busy"].named) == (1, 0)
    assert sum(group.runs for group in found.values()) == 9


def test_a_cause_that_explains_everything_and_one_that_explains_nothing() -> None:
    told = [row("a", 100 / s, s, 0.7) for s in (1.0, 1.2, 1.4, 1.6)]
    assert gate_runs.groups(told)["the GPU waits"].explained == pytest.approx(1)
    unlike = [row("a", v, s, 0.7) for v, s in ((100, 1.0), (80, 1.2), (80, 1.0), (100, 1.2))]
    assert gate_runs.groups(unlike)["the GPU waits"].explained == pytest.approx(0, abs=1e-9)


def test_samples_are_kept_with_their_causes(make_sample, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "samples" / "baseline" / "chat-bs1"
    folder.mkdir(parents=True)
    for number, contention in enumerate(({"scheduler_cpu_slowdown": 1.5, "gpu_busy_share": 0.5}, {})):
        sample = make_sample(
            90.0,
            metric="output_tok_s",
            contention=contention,
            void=(Void("slow_cpu", 1.5, 1.1, "x", "slow"),),
        )
        (folder / f"{number}.sample.json").write_text(json.dumps(sample.to_json()))
    out = tmp_path / "gate-runs-x.json"
    gate_runs.collect(out, [tmp_path / "run"])
    (kept,) = gate_runs.read(tmp_path)
    assert (kept["scheduler_cpu_slowdown"], kept["void"]) == (1.5, ["slow_cpu"])


def test_the_page_holds_what_the_kept_runs_give() -> None:
    page = (ROOT / "docs/explanation/noise.md").read_text()
    assert gate_runs.table(gate_runs.read(ROOT / "benchmarks/noise")) in page, (
        "python -m benchmarks.noise --gate-runs"
    )
