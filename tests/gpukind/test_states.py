"""GPUs as real hosts have them: lost, hidden, unlike, shared with a container; and configurations that miss them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.gate.runs import ROOT
from tests.gpukind.hosts import GpuHost
from tests.host.fake_nvml import HEALTHY, FakeNvml, NVMLError, nvml_of
from tokgate.cli import reap, run
from tokgate.config.engine import Engine
from tokgate.config.profiles import Profile, load_profiles
from tokgate.errors import ConfigFault, HostFault, UsageFault
from tokgate.gate import engines, share
from tokgate.gate import setup as gate_setup
from tokgate.gate.blocks.arms import ServerBench
from tokgate.gate.blocks.plan import Arm, BlockPlan
from tokgate.gate.cards import check_same_place
from tokgate.gate.claim import claim
from tokgate.gate.watch import Watch
from tokgate.host import contention, fitness, gpu, proc
from tokgate.host.gpu import Broken, Nvml
from tokgate.server import forensics

Read = Callable[..., gate_setup.Setup]
LOST = {"fault": NVMLError("GPU is lost")}


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Reads a request on a host with such GPUs."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOKGATE_RUNTIME_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr(contention, "steal_s", lambda: 0.0)

    def at(
        *cards: dict[str, Any], env: dict[str, str] | None = None, flags: tuple[str, ...] = ()
    ) -> gate_setup.Setup:
        nvml = Nvml(FakeNvml([{**HEALTHY, **card} for card in cards]))
        for module in (gpu, fitness):
            monkeypatch.setattr(module, "open_nvml", lambda: nvml)
        file = tmp_path / "engine.yaml"
        file.write_text(f"kind: gpu\nversion: 0.5.15.post1\npython: python3\nenv: {env or {}}\n")
        return gate_setup.read(
            gate_setup.Request(
                folder=ROOT / "perf_tests",
                results=tmp_path,
                baselines=tmp_path,
                engine=str(file),
                profiles=("baseline",),
                engine_flags=flags,
            )
        )

    return at


def refused(setup: gate_setup.Setup) -> HostFault:
    with pytest.raises(HostFault) as caught, claim(setup):
        raise AssertionError("claimed")
    return caught.value


def test_a_lost_gpu_is_refused_in_words(read: Read) -> None:
    fault = refused(read(LOST))
    assert (fault.headline, *fault.details) == (
        "GPU 0 does not answer: GPU is lost",
        "sudo dmesg | grep -i nvrm",
    )
    # The control: the one beside it is as good as ever.
    assert refused(
        read(LOST, {"processes": [(1, 5)]}, env={"CUDA_VISIBLE_DEVICES": "1"})
    ).headline.startswith("this host is not fit to measure on: gpu1.free")


@pytest.mark.parametrize(
    ("nvml", "told"),
    [
        ("no NVIDIA driver answers: x", "this host shows none: no NVIDIA driver answers: x"),
        (
            Broken("its NVIDIA driver does not answer: y"),
            "cannot tell its GPUs: its NVIDIA driver does not answer: y",
        ),
    ],
)
def test_a_claim_without_a_gpu_says_what_is_there(
    read: Read, monkeypatch: pytest.MonkeyPatch, nvml: str, told: str
) -> None:
    """Of bump and calibrate too, which know no -m."""
    setup = read({})
    monkeypatch.setattr(gpu, "open_nvml", lambda: nvml)
    assert refused(setup).headline.startswith(f"engine '{setup.engine.name}' needs a GPU and this host ")
    assert told in refused(setup).headline


def test_a_lost_gpu_does_not_hinder_the_choice_of_an_engine(read: Read) -> None:
    """The gate without --engine on such a host."""
    read(LOST, {})
    with pytest.raises(UsageFault, match="no GPU engine"):
        engines.choose(None, None)


def test_hidden_gpus_are_told_by_what_hides_them(read: Read) -> None:
    fault = refused(read({}, {}, env={"CUDA_VISIBLE_DEVICES": ""}))
    assert fault.headline == "the profiles need 1 GPU and none is visible"
    assert fault.details == ("CUDA_VISIBLE_DEVICES= (of the engine): it is empty, which hides every GPU",)


def test_unlike_gpus_must_be_numbered(read: Read) -> None:
    mixed = ({"name": "NVIDIA L4"}, {"processes": [(1, 5)]})
    assert "unlike GPUs" in refused(read(*mixed)).headline
    ordered = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
    assert "gpu1.free" in refused(read(*mixed, env=ordered)).headline


def test_a_gpu_that_is_lost_while_it_is_watched_leaves_its_counters_out(read: Read) -> None:
    watch = Watch(read({}), tuple)
    assert watch.snapshot([]).throttle_s
    opened = gpu.open_nvml()
    assert isinstance(opened, Nvml)
    opened._nvml.cards[0]["fault"] = NVMLError("GPU is lost")
    seen = watch.snapshot([])
    assert seen.throttle_s == {} and seen.foreign is None


@pytest.mark.parametrize("flag", ["--base-gpu-id=1", "--tp-size"])
def test_flags_that_take_a_server_to_other_gpus_are_refused(read: Read, flag: str) -> None:
    with pytest.raises(UsageFault, match=f"{flag.partition('=')[0]} takes the server to GPUs"):
        read({}, {}, flags=(flag, "2"))
    assert read({}, {}, flags=("--schedule-policy", "lpm")).engine.kind == "gpu"


def test_shares_need_an_engine_that_leaves_the_choice_to_them(read: Read) -> None:
    with pytest.raises(UsageFault, match="sets CUDA_VISIBLE_DEVICES for all"):
        share.deal(read({}, {}, env={"CUDA_VISIBLE_DEVICES": "0"}), (0, 1), emulated=False)
    assert share.deal(read({}, {}), (0, 1), emulated=False) == [share.Share((0,), ("baseline",))]


def test_shares_are_of_the_gpus_that_the_shell_was_given(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was given two GPUs of four would measure on those of its neighbours."""
    setup = read({}, {}, {}, {})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with pytest.raises(UsageFault, match="names GPU 0, 1, which CUDA_VISIBLE_DEVICES=2,3 hides") as caught:
        share.deal(setup, (0, 1), emulated=False)
    assert caught.value.details == ("--gpus takes NVML's numbers; visible: 2, 3",)
    assert share.deal(setup, (3, 2), emulated=False) == [share.Share((3,), ("baseline",))]


def test_engines_that_are_compared_are_on_the_same_gpus(tmp_path: Path) -> None:
    """A run claims the GPUs of one of them: the other's would be neither locked nor watched, and another's."""
    here, there = (Engine(n, "gpu", "0.5.15.post1", env={"CUDA_VISIBLE_DEVICES": n}) for n in "01")
    with pytest.raises(UsageFault, match="engine '0' sets CUDA_VISIBLE_DEVICES=0; engine '1' sets"):
        check_same_place(here, there)
    check_same_place(here, here)
    plain = Engine("b", "gpu", "0.5.15.post1")
    with pytest.raises(UsageFault, match="engine 'b' sets neither"):
        ServerBench(
            cast(gate_setup.Setup, SimpleNamespace(engine=here)),
            cast(
                BlockPlan, SimpleNamespace(arms=(Arm("A", here, Profile("p")), Arm("B", plain, Profile("p"))))
            ),
            tmp_path,
        )
    host = GpuHost(tmp_path)
    old, new = host.engine("0.5.13.post1", CUDA_VISIBLE_DEVICES="0"), host.engine("0.5.12")
    asked = (f"--from-engine={old}", f"--to-engine={new}", "--profiles=baseline", "--dry-run")
    assert run(["bump", *asked, f"--config-folder={host.config}", f"--results={tmp_path}"]) == 2
    with pytest.raises(UsageFault, match="choose others"):
        engines.reference(str(old), 1.0, plain)


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"])
def test_a_profile_chooses_no_gpus(tmp_path: Path, name: str) -> None:
    file = tmp_path / "profiles.yaml"
    file.write_text(f"profiles:\n  a:\n    env: {{{name}: '1'}}\n")
    with pytest.raises(ConfigFault, match="engine file or the shell selects"):
        load_profiles(file)
    file.write_text("profiles:\n  a:\n    env: {NCCL_DEBUG: WARN}\n")
    assert load_profiles(file).get("a").env == {"NCCL_DEBUG": "WARN"}


def test_evidence_says_what_nvml_does_not_report(monkeypatch: pytest.MonkeyPatch) -> None:
    own = proc.read(os.getpid())
    assert own is not None
    card = {"processes": [(own.pid, None)], "utilisation": None, "clock": None}
    monkeypatch.setattr(gpu, "open_nvml", lambda: nvml_of(card))
    lines, summary = forensics._gpus([own])
    assert summary == [f"GPU 0: {proc.title(own)} ({own.pid}) holds MiB not known, utilisation not reported"]
    assert "utilisation not reported, SM clock not reported" in lines[0]
    assert not [line for line in lines if "None" in line]
    assert reap._gpu_mib() == {own.pid: None}
    # The control: two GPUs that say it are added up.
    two = {"processes": [(own.pid, 700)]}
    monkeypatch.setattr(gpu, "open_nvml", lambda: nvml_of(two, two))
    assert reap._gpu_mib() == {own.pid: 1400}
    assert forensics._gpus([own])[1][0].endswith("holds 700 MiB, utilisation 0 %")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "bounded", "mib"),
    [
        ("named", True, 5168),
        ("host", True, None),
        ("unsized", True, None),
        ("unlisted", True, None),
        # What NVML tells is of a pool that the neighbours left.
        ("named", False, None),
    ],
)
def test_memory_of_servers_that_are_started_together(
    tmp_path: Path, processes: str, bounded: bool, mib: int | None
) -> None:
    """Neither the memory of all, nor 0, is that of one; and none waits for its neighbour's to be given back."""
    host = GpuHost(tmp_path)
    if bounded:
        file = host.config / "profiles.yaml"
        text = file.read_text()
        file.write_text(
            text.replace("    mem_fraction: 0.4\n", "    mem_fraction: 0.7\n    max_total_tokens: 65536\n")
        )
    finished = host.gate(
        "--profiles=baseline,baseline-eager,eagle3-graphs",
        "--start-together=2",
        "--runs=1",
        "-k=memory",
        FAKE_NVML_PROCESSES=processes,
    )
    for profile in ("baseline", "baseline-eager"):
        found = finished.one(f"startup-together[{profile}]", "gpu_memory_mib")
        if mib is None:
            assert found.headline == "gpu_memory_mib: neither this host nor the engine tells whose it is"
        else:
            assert found.evidence["now"] == mib
    assert "not given back" not in finished.output, finished.output
