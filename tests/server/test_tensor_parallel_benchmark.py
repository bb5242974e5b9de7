"""The benchmark of several GPUs, where there is none: what it sees on the emulated engine, and how it counts."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.tensor_parallel.exchange import waits
from benchmarks.tensor_parallel.gate import cards
from benchmarks.tensor_parallel.host import Host, Seen, compile_engine, used_mib
from benchmarks.tensor_parallel.parts import nccl_share
from tests.host.fake_nvml import nvml_of
from tokgate.config.engine import emulated_engine
from tokgate.host import gpu

ROOT = Path(__file__).parents[2]
STEADY = ROOT / "tokgate" / "emulator" / "scenarios" / "steady.yaml"


def _kernel(name: str, at_us: float, for_us: float, kind: str = "kernel") -> dict[str, object]:
    return {"ph": "X", "cat": kind, "name": name, "ts": at_us, "dur": for_us}


def test_share_of_nccl_in_a_trace(tmp_path: Path) -> None:
    events = [
        _kernel("gemm", 0, 600),
        _kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 600, 300),
        _kernel("gemm", 900, 100),
        # What the host does is no kernel, whatever its name.
        _kernel("ncclAllReduce", 0, 5000, "cuda_runtime"),
    ]
    file = tmp_path / "x.trace.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    assert nccl_share(file) == {
        "kernels": 3,
        "nccl_kernels": 1,
        "nccl_ms": 0.3,
        "span_ms": 1.0,
        "share": 0.3,
    }
    file.write_bytes(b"cut short")
    assert nccl_share(file) == {}


def test_who_waited_in_an_exchange_and_who_was_only_slow(tmp_path: Path) -> None:
    def rank(name: str, *own: tuple[float, float]) -> Path:
        file = tmp_path / name
        events = [_kernel("ncclDevKernel_AllReduce", at_us, for_us) for at_us, for_us in own]
        file.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
        return file

    late = rank("late", (500, 10), (1000, 7), (2000, 7))
    early = rank("early", (10, 500), (1000, 7), (2000, 7))
    found = waits(early, late)
    assert (found.long, found.long_ms, found.explained_ms, found.row) == (1, 0.5, 0.49, 1)
    assert waits(late, early).long == 0
    # Long on both, begun together: the link is slow, and nobody waited for anybody.
    link = [rank(name, (0, 500), (1000, 500)) for name in ("a", "b")]
    assert (waits(*link).long_ms, waits(*link).explained_ms) == (1.0, 0.0)
    with pytest.raises(ValueError, match="early has 3 exchanges, b 2"):
        waits(early, link[1])


def test_the_engine_is_compiled_although_the_image_forbids_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "part.py").write_text("WORD = 1\n")
    folders = (str(tmp_path / "engine"), str(tmp_path / "not there"))
    engine = replace(emulated_engine(), kind="gpu", python=sys.executable, pythonpath=folders)
    compile_engine(Host(engine, "", "", tmp_path, until_s=0.0))
    assert list((tmp_path / "engine" / "__pycache__").glob("part.*.pyc"))
    assert json.loads((tmp_path / "bytecode.json").read_text())["said"] == "done"


def test_what_was_left_out_is_not_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = Host(emulated_engine(), "", "", tmp_path, until_s=0.0)
    host.say("locks", "held", True)
    host.say("gate", "a gate", None, "no GPU")
    assert "left out a gate: no GPU" in capsys.readouterr().out
    assert json.loads((tmp_path / "seen.json").read_text()) == [
        ["locks", "held", True, ""],
        ["gate", "a gate", None, "no GPU"],
    ]
    assert "NOT SEEN" in str(Seen("gate", "a gate", False))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 8])
def test_faults_of_a_rank_on_the_emulated_engine(tmp_path: Path, ranks: int) -> None:
    scenario, engine = tmp_path / "slow.yaml", tmp_path / "engine.yaml"
    times = "spawn_s: 0.3, imports_s: 1, weights_s: 0.5, kv_cache_s: 0.8, capture_target_s: 2"
    scenario.write_text(f"{STEADY.read_text()}\nstartup: {{{times}}}\n")
    engine.write_text(f"kind: emulated\nversion: 0.5.15.post1\nscenario: {scenario}\n")
    words = f"--engine {engine} --out {tmp_path / 'out'} --tp {ranks} --only servers --budget-s 240"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tensor_parallel", *words.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    seen = json.loads((tmp_path / "out" / "seen.json").read_text())
    by_part: dict[str, set[object]] = {}
    for part, _, ok, _ in seen:
        by_part.setdefault(part, set()).add(ok)
    # What needs a GPU is left out and makes the exit code 1; the rest is seen, and nothing is seen not to be.
    assert {part for part, oks in by_part.items() if oks == {True}} == {
        "ranks",
        "environment",
        "slow-rank",
        "hang-capture",
        "hang-decode",
    }, done.stdout
    assert False not in set().union(*by_part.values()) and done.returncode == 1, done.stdout


def test_of_four_gpus_only_those_that_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    host = nvml_of(*({"used_mib": 100 * number} for number in range(4)))
    monkeypatch.setattr(gpu, "open_nvml", lambda: host)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert cards() == {"GPU-2000": 2, "GPU-3000": 3}
    assert sorted(used_mib() or {}) == [2, 3]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert len(cards()) == 4
