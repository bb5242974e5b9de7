"""Every command that meets a GPU, on engines of kind ``gpu``: none ends in a traceback, each figure is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gpukind.hosts import GpuHost
from tokgate import baselines
from tokgate.verdict import Kind

CASE = ("--profiles=eagle3-graphs", "--workloads=chat-bs1")
STATIC_MIB = 620 + int(143771 * 0.4)
CAPPED_MIB = 620 + 2500 + 65536 * 32 // 1024


def test_doctor_finds_an_idle_gpu(host: GpuHost) -> None:
    done = host.run("doctor", "--json")
    assert done.returncode == 0, done.stdout
    found = {item["name"]: item["level"] for item in json.loads(done.stdout)["findings"]}
    assert found["gpu0"] == found["gpu0.free"] == "ok"


def test_a_gate_and_its_acceptance(host: GpuHost) -> None:
    finished = host.gate(*CASE, "--runs=2", "--trace-steps=3", "-k=not parity and not latency")
    assert finished.facts["host_class"] == "nvidia-h200"
    memory = finished.one("startup[eagle3-graphs]", "gpu_memory_mib")
    assert (memory.kind, memory.evidence["now"]) == (Kind.MISSING, STATIC_MIB)
    assert finished.one("startup[eagle3-graphs]", "graphs_gb").evidence["now"] == pytest.approx(0.18)
    gain = finished.one("chat-bs1[eagle3-graphs]", "decode_tok_s")
    assert gain.kind in (Kind.PASS, Kind.INCONCLUSIVE), finished.output
    # What only a GPU engine has: the floor of its memory, and its counters beside each run.
    (roofline,) = [
        line
        for line in finished.one("chat-bs1[eagle3-graphs]", "graph launches").body
        if line.startswith("roofline: ")
    ]
    assert "a step at 4295 GB/s" in roofline, roofline
    for sample in finished.samples("baseline", "chat-bs1"):
        seen = sample["contention"]
        assert seen["foreign_gpu_processes"] == seen["gpu_power_throttle_s"] == 0
    accepted = host.run(
        "accept", "latest", "--reason=x", f"--results={host.results}", f"--baselines={host.baselines}"
    )
    assert accepted.returncode == 0, accepted.stderr
    stored = baselines.read(host.baselines, "nvidia-h200", "eagle3-graphs", "startup")
    assert stored is not None and stored.series("gpu_memory_mib") == [[STATIC_MIB]]


def test_a_calibration_without_engine_flags(host: GpuHost) -> None:
    """Its servers are up at once, and bounded."""
    asked = ("--profiles=baseline", "--workloads=chat-bs1", "--blocks=1", "--runs=1")
    done = host.measure("calibrate run", f"--engine={host.engine()}", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    starts = _samples(host.results / "calibrate", "startup")
    assert [s["metrics"]["gpu_memory_mib"] for s in starts] == [CAPPED_MIB] * 2
    assert {s["metrics"]["kv_cache_tokens"] for s in starts} == {65536}


def _samples(folder: Path, workload: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.rglob(f"{workload}/*.sample.json")]


@pytest.mark.slow
def test_a_calibration_of_servers_that_do_not_fit_side_by_side(host: GpuHost) -> None:
    asked = ("--profiles=eagle3-graphs", "--workloads=chat-bs1", "--blocks=1", "--runs=1")
    done = host.measure(
        "calibrate run",
        f"--engine={host.engine()}",
        *asked,
        "--engine-flag=--mem-fraction-static",
        "--engine-flag=0.6",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    starts = _samples(host.results / "calibrate" / "nvidia-h200" / "eagle3-graphs", "startup")
    assert [s["metrics"]["gpu_memory_mib"] for s in starts] == [620 + int(143771 * 0.6)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("pairing", [(), ("--one-at-a-time",), ("--all-at-once",)])
def test_a_bump_that_is_gone_on_with(host: GpuHost, tmp_path: Path, pairing: tuple[str, ...]) -> None:
    results = f"--results={tmp_path}"
    done = host.measure(
        "bump",
        results,
        f"--from-engine={host.engine('0.5.13.post1')}",
        f"--to-engine={host.engine()}",
        "--profiles=baseline,eagle3-graphs",
        "--workloads=chat-bs1",
        "--metrics=output_tok_s",
        "--parity=batch-1",
        "--blocks=3",
        "--runs=1",
        "--budget-minutes=0.01",
        *pairing,
    )
    assert done.returncode == 3 and "host class nvidia-h200" in done.stdout, done.stdout + done.stderr
    went_on = host.run("bump", "--resume=latest", results)
    assert went_on.returncode in (0, 3), went_on.stdout + went_on.stderr
    assert "6 blocks" in went_on.stdout and "REGRESSION" not in went_on.stdout, went_on.stdout


@pytest.mark.slow
def test_a_bump_where_memory_is_short(host: GpuHost, tmp_path: Path) -> None:
    """A start that dies for want of memory is no verdict on a build: servers go fewer at a time."""
    slot = {"FAKE_SLOT": str(tmp_path / "slot")}
    files = [host.engine(version, **slot) for version in ("0.5.13.post1", "0.5.15.post1")]
    for file in files:
        file.write_text(file.read_text().replace("tokgate.emulator", "one_slot"))
    done = host.measure(
        "bump",
        f"--results={tmp_path}",
        f"--from-engine={files[0]}",
        f"--to-engine={files[1]}",
        "--profiles=baseline,eagle3-graphs",
        "--workloads=chat-bs1",
        "--metrics=output_tok_s",
        "--parity=none",
        "--blocks=3",
        "--runs=1",
        "--all-at-once",
    )
    assert done.returncode in (0, 3), done.stdout + done.stderr
    progress = done.stderr + done.stdout
    assert progress.count(": fewer at a time from now on") >= 2 and "6 blocks" in done.stdout, progress


@pytest.mark.slow
def test_a_bisection(host: GpuHost, tmp_path: Path) -> None:
    host.engine("0.5.13.post1")
    host.engine("0.5.14", "start-exit:kv-cache")
    host.engine("0.5.15.post1", "start-exit:kv-cache")
    done = host.measure(
        "bisect",
        f"--results={tmp_path}",
        "--good=0.5.13.post1",
        "--bad=0.5.15.post1",
        "--metric=failure",
        "--launches=1",
        f"--engines={host.folder / 'engines'}/{{version}}.yaml",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0.5.14 is the first bad one, 0.5.13.post1 the last good one" in done.stdout


@pytest.mark.slow
def test_builds_side_by_side_within_a_budget(host: GpuHost) -> None:
    reference = host.engine("0.5.13.post1")
    finished = host.gate(
        *CASE,
        "--runs=2",
        "-k=throughput",
        "--budget-minutes=0.4",
        f"--reference-engine={reference}",
    )
    assert finished.one("chat-bs1[eagle3-graphs]", "output_tok_s").kind in (Kind.PASS, Kind.INCONCLUSIVE)
    assert "blocks of build-" in finished.output, finished.output


@pytest.mark.slow
def test_profiles_on_gpus_of_their_own(two: GpuHost) -> None:
    finished = two.gate(
        "--gpus=0,1", "--profiles=baseline,baseline-eager,tp2-baseline", "--runs=1", "-k=memory"
    )
    for words in ("GPU 0: baseline\n", "GPU 1: baseline-eager\n", "GPU 0+1: tp2-baseline\n", "3 shares"):
        assert f"tokgate: {words}" in finished.output, finished.output
    memory = {
        line.split()[1]: line.split()[3]
        for line in finished.output.splitlines()
        if line.startswith("MISSING") and "gpu_memory_mib" in line
    }
    assert memory == {
        "startup[baseline]": str(STATIC_MIB),
        "startup[baseline-eager]": str(STATIC_MIB),
        "startup[tp2-baseline]": str(CAPPED_MIB),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        ("capture-hang:target-decode", "HANG", f"holds {STATIC_MIB} MiB, utilisation 97 %"),
        ("start-exit:weights", "EXITED", "GPU 0: 0 MiB still held"),
    ],
)
def test_a_start_that_fails_tells_of_the_gpu(tmp_path: Path, fault: str, kind: str, told: str) -> None:
    host = GpuHost(tmp_path)
    gate = host.config / "gate.yaml"
    gate.write_text(gate.read_text().replace("capture_s: 120, warmup_s: 60", "capture_s: 2, warmup_s: 60"))
    engine = host.engine("0.5.14", fault)
    finished = host.gate(
        f"--engine={engine}", "--profiles=baseline", "-k=startup and not startup_time and not memory"
    )
    assert finished.code == 1
    assert f"{kind} startup[baseline]" in finished.output and told in finished.output, finished.output
