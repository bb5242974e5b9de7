"""tokgate beside bench_serving: the run on an H200 that is kept, its page, and the way bench_serving reckons."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving.__main__ import main
from benchmarks.serving.peer import by_their_definitions
from benchmarks.serving.table import TOOLS, medians, one_round, table, valid, void_notes
from tests.load.peers import ROOT
from tests.load.test_metrics import recording, steady_stream
from tokgate.load.measurement import Measurement
from tokgate.load.metrics import metrics
from tokgate.load.sample import Audit

KEPT = json.loads((ROOT / "tests/assets/serving/h200.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/explanation/beside_bench_serving.md").read_text(encoding="utf-8")
CELLS = KEPT["cells"]


def test_every_cell_was_measured_by_both_on_comparable_servers() -> None:
    assert set(CELLS) == {f"{name} c={c}" for name in ("baseline", "eagle3-graphs") for c in (1, 8, 64)}
    assert all(valid(cell) and len(cell["bench_serving"]) == 2 for cell in CELLS.values())
    assert KEPT["incomparable"] == []
    for resolved in KEPT["resolved"].values():
        assert resolved["max_running_requests"] == resolved["cuda_graph_decode_max_bs"] == 64


@pytest.mark.parametrize("c", [1, 8, 64])
def test_accept_lengths_agree_once_reckoned_alike(c: int) -> None:
    found = medians(CELLS[f"eagle3-graphs c={c}"])
    ours, same, theirs = (found[tool]["accept length"] for tool in TOOLS)
    assert same == pytest.approx(theirs, rel=0.002)
    assert ours <= same


@pytest.mark.parametrize("c", [1, 8, 64])
def test_gaps_differ_by_definition_under_speculation_alone(c: int) -> None:
    gap = "gap (ITL) p50, ms"
    plain, eagle = (medians(CELLS[f"{name} c={c}"]) for name in ("baseline", "eagle3-graphs"))
    assert plain[TOOLS[0]][gap] == pytest.approx(plain[TOOLS[1]][gap])
    assert eagle[TOOLS[0]][gap] > 2 * eagle[TOOLS[1]][gap]


def test_the_page_shows_what_is_kept() -> None:
    for line in [*table(CELLS), *table(one_round(CELLS, 2))]:
        assert line in PAGE, line
    assert len(void_notes(CELLS)) == 1 and "One of tokgate's 12 runs is void" in PAGE


def test_their_definitions_on_a_run_known_by_arithmetic() -> None:
    """10 passes of 2 tokens, 30 ms each, after a first token; the last draft is past the end."""
    run = recording([steady_stream(0.0, 0.1, 0.03, [1] + [2] * 10)])
    found, duration_s = metrics(run, 1)
    (request,) = run.requests
    request = type(request)(
        **{name: getattr(request, name) for name in type(request).__slots__}
        | {"verify_count": 10, "accept_histogram": (0, 9, 1)}
    )
    measured = Measurement((request,), Audit("kernel"), found, duration_s, (), run.timeline)
    theirs = by_their_definitions(measured, info_s=0.1)
    assert found["step_ms_p50"] == pytest.approx(30) and theirs["gap (ITL) p50, ms"] == pytest.approx(15)
    assert theirs["TPOT p50, ms"] == pytest.approx(15)
    assert theirs["output tok/s"] == pytest.approx(21 / 0.5)
    assert theirs["accept length"] == pytest.approx(2.1)
    assert np.isclose(theirs["TTFT p50, ms"], 100)


FAKE = """
import json, sys
print("ready 9.9 autobench", flush=True)
for line in sys.stdin:
    argv = json.loads(line)["argv"]
    with open(argv[argv.index("--output-file") + 1], "w") as file:
        json.dump({"output_throughput": 1.0, "request_rate": float("inf"), "median_ttft_ms": 2.0}, file)
    print("done 0 0.1 0.2", flush=True)
"""


def test_it_measures_an_emulated_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """All of it but bench_serving itself, which needs SGLang: a stand-in speaks the driver's protocol."""
    driver = tmp_path / "driver.py"
    driver.write_text(FAKE)
    monkeypatch.setattr("benchmarks.serving.peer.DRIVER", driver)
    arguments = ["--engine", "emulated:steady", "--target", "emulated", "--draft", "emulated"]
    arguments += ["--out", str(tmp_path / "out"), "--budget-s", "120", "--concurrency", "2", "--rounds", "1"]
    code = main([*arguments, "--output-tokens", "16", "--requests-floor", "2"])
    kept = json.loads((tmp_path / "out/serving.json").read_text())
    assert kept["incomparable"] == [] and kept["bench_serving"] == "9.9"
    assert set(kept["cells"]) == {"baseline c=2", "eagle3-graphs c=2"}
    for cell in kept["cells"].values():
        assert cell["tokgate"][0]["output tok/s"] > 0
        assert cell["bench_serving"][0]["TTFT p50, ms"] == 2.0
        assert "request_rate" not in cell["bench_serving"][0]["raw"]
    shown = capsys.readouterr().out
    # A busy machine voids runs, and then not all was seen.
    assert code == (0 if "all seen" in shown else 1) and "| eagle3-graphs c=2" in shown


def test_what_there_was_no_time_for_is_said(tmp_path: Path) -> None:
    """In a process of its own: servers that are still starting go when it does."""
    arguments = ["--engine", "emulated:steady", "--target", "emulated", "--draft", "emulated"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.serving", *arguments, "--out", str(tmp_path), "--budget-s", "5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "baseline: no server" in done.stdout and "NOT ALL SEEN" in done.stdout
