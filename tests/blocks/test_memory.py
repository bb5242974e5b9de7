"""Memory of a server is gated: against its baseline, and never taken as well where it is not told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.gate.runs import tokgate
from tokgate import accepting
from tokgate.bump import witness
from tokgate.config.engine import EngineKind
from tokgate.config.gate import load_gate
from tokgate.config.profiles import Profile
from tokgate.gate.blocks import arms
from tokgate.gate.blocks.arms import ServerBench
from tokgate.gate.blocks.plan import Arm, BlockPlan
from tokgate.gate.judge import Judge
from tokgate.gate.setup import Setup
from tokgate.gate.started import Started
from tokgate.gate.starts import Starts, verdict
from tokgate.gate.watch import memory
from tokgate.load.sample import Audit, Identity, Sample
from tokgate.server.running import Server
from tokgate.server.timeline import Capture
from tokgate.verdict import Kind

GATE = load_gate(Path(__file__).parents[2] / "perf_tests" / "gate.yaml")


def server(**parts: Any) -> Server:
    profile = Profile("p", max_total_tokens=4096)
    given = {"profile": profile, "gpu_memory_mib": lambda: None, "captures": (), "server_info": {}} | parts
    return cast(Server, SimpleNamespace(**given))


def started(run: int = 0, day: int = 1, **metrics: float) -> Starts:
    who = Identity(
        "gpu",
        "g",
        "0.5",
        "h200",
        "baseline",
        "p",
        "startup",
        "",
        "m",
        f"l{day}{run}",
        run,
        f"2026-01-{day:02}T00:00:00+00:00",
    )
    sample = Sample(who, (), Audit("user"), {"startup_s": 50.0, "imports_s": 20.0, **metrics}, 50.0)
    return Starts((Started(sample, Path("s.json")),), {})


def record(root: Path, days: int, **metrics: float) -> None:
    for day in range(1, days + 1):
        (start,) = started(day=day, **metrics).good
        accepting.accept(
            root, [start.sample], run=f"r{day}", reason="recorded", metrics=["startup_s", *metrics], new_epoch=False,
            tokgate_version="0",
        )  # fmt: skip


def judged(root: Path, metric: str, **metrics: float) -> Kind:
    return Judge(GATE, root, "tokgate accept", 1).memory(started(**metrics), metric).kind


def test_what_a_server_took_is_read_and_what_is_not_told_is_absent() -> None:
    assert memory(server(), alone=True) == {}
    captures = (
        Capture("target-decode", "TP0", 3.0, 0.5), Capture("draft-decode", "TP0", 3.0, 0.2),
        Capture("target-decode", "TP1", 3.0, 0.6), Capture("draft-decode", "TP1", 3.0, 0.05),
    )  # fmt: skip
    ready = server(
        gpu_memory_mib=lambda: {0: 900, 1: 1000},
        captures=captures,
        server_info={"max_total_num_tokens": 4096},
    )
    found = memory(ready, alone=True)
    assert found == {"gpu_memory_mib": 1000.0, "graphs_gb": pytest.approx(0.7), "kv_cache_tokens": 4096.0}
    # What the log does not tell of one capture would be missing in a sum that passes for less memory.
    untold = server(captures=(*captures[:3], Capture("draft-decode", "TP1", None)))
    assert memory(untold, alone=True) == {}
    # The log's figure is what became less on the whole GPU: beside servers that start it is anybody's.
    assert memory(ready, alone=False) == {"gpu_memory_mib": 1000.0, "kv_cache_tokens": 4096.0}
    # Without a bound in tokens a pool is what the others leave, and another one at each start.
    ready.profile = Profile("p")  # type: ignore[misc]
    assert memory(ready, alone=False) == {}
    assert memory(ready, alone=True).keys() == {"gpu_memory_mib", "graphs_gb", "kv_cache_tokens"}


def test_less_room_than_recorded_is_a_regression_and_as_much_passes(tmp_path: Path) -> None:
    record(tmp_path, 10, kv_cache_tokens=100_000.0)
    assert judged(tmp_path, "kv_cache_tokens", kv_cache_tokens=100_000.0) is Kind.PASS
    assert judged(tmp_path, "kv_cache_tokens", kv_cache_tokens=90_000.0) is Kind.REGRESSION


def test_what_is_not_told_is_neither_good_nor_bad(tmp_path: Path) -> None:
    assert judged(tmp_path, "gpu_memory_mib") is Kind.NOT_APPLICABLE
    assert judged(tmp_path, "gpu_memory_mib", gpu_memory_mib=900.0) is Kind.MISSING
    record(tmp_path, 3)
    assert judged(tmp_path, "gpu_memory_mib", gpu_memory_mib=900.0) is Kind.INCONCLUSIVE
    record(tmp_path / "b", 3, gpu_memory_mib=900.0)
    assert judged(tmp_path / "b", "gpu_memory_mib") is Kind.INCONCLUSIVE


def test_memory_is_no_phase_of_the_start() -> None:
    told = verdict(started(gpu_memory_mib=20_000.0, kv_cache_tokens=1e6))
    assert told.headline == "ready and generating after 50 s (imports 20 s)"


def test_memory_is_gated_on_gpus_alone() -> None:
    assert GATE.gated("gpu_memory_mib", "gpu") and not GATE.gated("gpu_memory_mib", "emulated")
    assert GATE.gated("output_tok_s", "emulated") and not GATE.gated("nothing", "gpu")


def test_where_memory_is_not_gated_there_is_no_case_of_it_and_no_skip(tmp_path: Path) -> None:
    asked = ("gate", "perf_tests", "--engine=emulated:steady", "--profiles=baseline", f"--results={tmp_path}")
    done = tokgate(*asked, "-k=startup or memory", "--collect-only", "-q", "-p", "no:cacheprovider")
    assert "test_startup[baseline]" in done.stdout
    assert "test_memory" not in done.stdout


def test_a_bump_tells_what_a_process_holds_and_not_what_became_less_beside_others() -> None:
    said = {"memory_usage": {"weight": 30.04, "kvcache": 8.0, "graph": -0.82, "token_capacity": 65536}}
    ready = server(
        server_info={"internal_states": [said], "max_total_num_tokens": 65536}, rss_mib=lambda: 17692.34
    )
    (start,) = started(gpu_memory_mib=25810.0).good
    start = replace(start, captures=(Capture("target-verify", "TP0", 3.0, -0.99),))
    held = {"kv_cache_tokens": 65536.0, "gpu_memory_mib": 25810.0, "resident_mib": 17692.3}
    assert witness.memory(ready, start, alone=False) == held
    free = {"weight_gb": 30.04, "kvcache_gb": 8.0, "graph_gb": -0.82, "graph_captures_gb": -0.99}
    assert witness.memory(ready, start, alone=True) == held | free


@pytest.mark.parametrize(
    ("kind", "together", "wanted"),
    [("gpu", True, True), ("gpu", False, False), ("cpu", True, False), ("emulated", True, False)],
)
def test_servers_of_a_block_on_a_gpu_are_measured_as_crowded(
    kind: EngineKind,
    together: bool,
    wanted: bool,
    setup: Setup,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(arms, "Measurer", lambda *_, crowded, **__: told.append(crowded))
    engine = replace(setup.engine, kind=kind)
    profile = setup.profiles["baseline"]
    plan = BlockPlan(
        tuple(Arm(name, engine, profile) for name in "AB"),
        tuple(setup.workloads.values()),
        1,
        together=together,
    )
    bench = ServerBench(setup, plan, tmp_path)
    for arm in plan.arms:
        bench._rig(0, arm, tuple)
    assert told == [wanted, wanted]
