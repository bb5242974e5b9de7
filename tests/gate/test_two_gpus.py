"""Profiles of two ranks: where they can be run, under which class, which GPUs they hold, what their start tells."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gate.runs import ROOT, Finished, tokgate
from tests.golden import compare
from tests.host.fake_nvml import HEALTHY, FakeNvml
from tokgate.errors import HostFault
from tokgate.gate import setup as gate_setup
from tokgate.host import gpu
from tokgate.host.gpu import Nvml
from tokgate.host.lock import GpuLocks
from tokgate.models import maker
from tokgate.verdict import Kind

NVML = Path(__file__).parent / "two_gpus"
TP2 = {"tp2-baseline", "tp2-eagle3-graphs", "tp2-eagle3-eager"}
GOLDEN = Path(__file__).parents[1] / "messages" / "gate" / "startup-two-ranks.txt"
STARTUP = ("perf_tests/test_startup.py::test_startup",)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., gate_setup.Setup]:
    """Reads a request on a host with so many GPUs of a name."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    engine = _engine(tmp_path)

    def read(*names: str, profiles: tuple[str, ...] = (), kind: str = "gpu") -> gate_setup.Setup:
        monkeypatch.setattr(gpu, "open_nvml", lambda: Nvml(FakeNvml([{**HEALTHY, "name": n} for n in names])))
        return gate_setup.read(
            gate_setup.Request(
                folder=ROOT / "perf_tests",
                results=tmp_path,
                baselines=tmp_path / "baselines",
                engine=str(engine) if kind == "gpu" else None,
                kind=kind,  # type: ignore[arg-type]
                profiles=profiles,
            )
        )

    return read


def _engine(folder: Path) -> Path:
    """An engine of kind gpu that any host can run: the emulated one behind it prints what two ranks print."""
    file = folder / "gpu" / "engine.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        f"kind: gpu\nversion: 0.5.15.post1\npython: {sys.executable}\npythonpath: [{ROOT}]\n"
        "launcher: [-m, tokgate.emulator, --scenario, steady]\n"
    )
    return file


def test_on_one_gpu_they_are_not_applicable_once_each(host: Callable[..., gate_setup.Setup]) -> None:
    setup = host("NVIDIA H200")
    assert setup.not_applicable == dict.fromkeys(TP2, "needs 2 GPUs and 1 is visible here")
    assert not TP2 & set(setup.profile_names())
    assert (setup.host_class, setup.ranks) == ("nvidia-h200", 1)


def test_on_two_gpus_every_profile_has_the_class_of_what_it_uses(
    host: Callable[..., gate_setup.Setup],
) -> None:
    setup = host("NVIDIA H200", "NVIDIA H200")
    assert setup.not_applicable == {}
    assert set(setup.profile_names()) >= TP2
    assert {setup.host_classes[name] for name in TP2} == {"nvidia-h200-x2"}
    assert setup.host_classes["baseline"] == "nvidia-h200"
    assert (setup.host_class, setup.ranks) == ("nvidia-h200, nvidia-h200-x2", 2)


def test_visible_gpus_count_not_those_of_the_host(
    host: Callable[..., gate_setup.Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    setup = host("NVIDIA L4", "NVIDIA H200")
    assert set(setup.not_applicable) == TP2 and setup.host_class == "nvidia-h200"


def test_unlike_gpus_are_a_class_of_their_own(host: Callable[..., gate_setup.Setup]) -> None:
    assert host("NVIDIA L4", "NVIDIA H200").host_classes["tp2-baseline"] == "nvidia-h200+nvidia-l4-x2"


def test_asked_for_on_one_gpu_they_are_the_hosts_fault_not_a_green_run(
    host: Callable[..., gate_setup.Setup],
) -> None:
    with pytest.raises(HostFault, match="none of the profiles can be run here") as caught:
        host("NVIDIA H200", profiles=("tp2-eagle3-graphs",))
    assert "tp2-eagle3-graphs: needs 2 GPUs and 1 is visible here" in caught.value.details


def test_without_gpus_they_are_run_when_named(host: Callable[..., gate_setup.Setup]) -> None:
    assert not TP2 & set(host(kind="emulated").profiles)
    named = host(kind="emulated", profiles=("tp2-eagle3-graphs",))
    assert named.profile_names() == ["tp2-baseline", "tp2-eagle3-graphs"]
    assert named.host_class == "emulated-founding"


@pytest.fixture
def two(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the gate on a host with two GPUs that exist for NVML alone."""
    engine = _engine(tmp_path)
    maker.make("tiny", tmp_path / "pair", seed=0, accept_length=2.5)

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return tokgate(
            "gate",
            "-m",
            "gpu",
            "-p",
            "no:cacheprovider",
            *STARTUP,
            f"--engine={engine}",
            f"--model={tmp_path / 'pair'}",
            f"--results={tmp_path / 'results'}",
            f"--baselines={tmp_path / 'baselines'}",
            *arguments,
            PYTHONPATH=f"{NVML}{os.pathsep}{ROOT}",
            TOKGATE_RUNTIME_DIR=str(tmp_path / "locks"),
            **environment,
        )

    return run


def test_a_start_on_two_gpus(tmp_path: Path, two: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = two("--profiles=tp2-eagle3-graphs", NCCL_DEBUG="WARN", CUDA_DEVICE_MAX_CONNECTIONS="1")
    finished = Finished(done.returncode, done.stdout + done.stderr, tmp_path / "results")
    verdict = finished.one("startup[tp2-eagle3-graphs]", "readiness")
    assert verdict.kind is Kind.PASS, finished.output
    assert finished.facts["host_class"] == "nvidia-h200-x2"
    assert {s["identity"]["host_class"] for s in finished.samples("tp2-baseline", "startup")} == {
        "nvidia-h200-x2"
    }
    table = verdict.evidence["captures"]
    assert [(c["kind"], c["rank"]) for c in table] == [  # type: ignore[attr-defined]
        ("target-verify", "TP0"),
        ("target-verify", "TP1"),
        ("draft-decode", "TP0"),
        ("draft-extend", "TP0"),
    ]
    assert not list((tmp_path / "locks").glob("*.lock")), "the locks are given back"
    compare(GOLDEN, _normal(verdict.text()))


def _normal(text: str) -> str:
    for pattern, word in (
        (r"[\d.]+ (s|GB)\b", r"N \1"),
        (r"\([^()]*N s(, [^()]*N s)*\)", "(PHASES)"),
        (r"(file: ).*/", r"\1"),
        (r"[0-9a-f]{12}-r00", "LAUNCH-r00"),
    ):
        text = re.sub(pattern, word, text)
    # What else this shell has set of NCCL_, CUDA_, ... is nobody's business.
    known = ("CUDA_DEVICE", "CUDA_MODULE", "NCCL_CUMEM", "NCCL_DEBUG", "NCCL_NVLS")
    head, mark, rest = text.partition("environment of every worker: ")
    items, _, after = rest.partition("\n")
    kept = [item for item in items.split(", ") if item.startswith(known)]
    return f"{head}{mark}{', '.join(kept)}\n{after}"


def test_a_gpu_that_another_gate_holds_is_refused_and_the_other_one_is_left_free(
    tmp_path: Path, two: Callable[..., subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKGATE_RUNTIME_DIR", str(tmp_path / "locks"))
    with GpuLocks(["GPU-1000"]):
        refused = two("--profiles=tp2-baseline")
        assert refused.returncode == 3, refused.stdout
        assert f"GPU-1000 is in use by another tokgate: pid {os.getpid()}" in refused.stdout
        assert [path.name for path in (tmp_path / "locks").glob("*.lock")] == ["GPU-1000.lock"]


@pytest.mark.slow
def test_a_gate_on_the_other_gpu_runs_beside_and_one_that_queues_says_so(
    tmp_path: Path, two: Callable[..., subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKGATE_RUNTIME_DIR", str(tmp_path / "locks"))
    with GpuLocks(["GPU-1000"]):
        beside = two("--profiles=baseline", CUDA_VISIBLE_DEVICES="0")
        assert beside.returncode == 0, beside.stdout
        waited = two("--profiles=baseline", "--wait-gpu-s=0.5", CUDA_VISIBLE_DEVICES="1")
        assert waited.returncode == 3
        # Said while it waits, not with the report of a test.
        assert "tokgate: waiting for GPU-1000, held by pid" in waited.stderr
