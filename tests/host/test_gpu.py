"""GPU facts from a fake NVML, and what is said of a host without one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import pytest

from tests.host.fake_nvml import (
    HEALTHY,
    FakeNvml,
    NVMLError,
    NVMLError_DriverNotLoaded,
    NVMLError_LibraryNotFound,
    NVMLError_NoPermission,
)
from tokgate.errors import HostFault
from tokgate.gate import engines
from tokgate.host import gpu, gpu_fitness
from tokgate.host.contention import snapshot
from tokgate.host.finding import Finding
from tokgate.host.fitness import worst
from tokgate.host.gpu import Nvml
from tokgate.host.host_class import host_class
from tokgate.host.visible import numbered_otherwise, visible_indices, why_no_more

NvmlMaker = Callable[..., Nvml]


def findings(nvml: Nvml | str) -> dict[str, Finding]:
    return {finding.name: finding for finding in gpu_fitness.examine(nvml, None) if finding.name != "xid"}


def test_facts(nvml: NvmlMaker) -> None:
    opened = nvml({"processes": [(os.getpid(), 900), (999_999, None)], "used_mib": 1000, "utilisation": 100})
    card = opened.gpu(0)
    assert (card.name, card.uuid, card.memory_used_mib) == ("NVIDIA H200", "GPU-0000", 1000)
    assert card.processes is not None
    assert [(p.pid, p.mib) for p in card.processes] == [(os.getpid(), 900), (999_999, None)]
    assert "not visible from here" in card.processes[1].name
    assert (card.sm_clock_mhz, card.power_w, card.utilisation_percent) == (1980, 75.0, 100)
    assert card.throttle == ()
    assert card.pcie == "gen5 x16 (max gen5 x16)"
    assert (opened.driver, opened.cuda) == ("580.159", "13.0")


def test_what_is_not_supported_is_none(nvml: NvmlMaker) -> None:
    absent = dict.fromkeys(
        ("processes", "utilisation", "mig", "remap_pending", "ecc", "clock", "reasons", "power_mw", "gen")
    )
    opened = nvml(absent)
    card = opened.gpu(0)
    for value in (
        card.processes,
        card.utilisation_percent,
        card.mig,
        card.ecc_uncorrected,
        card.sm_clock_mhz,
    ):
        assert value is None
    assert card.throttle is None and card.power_w is None and card.pcie is None
    found = findings(opened)
    assert {found[f"gpu0.{name}"].level for name in ("clocks", "throttle", "ecc")} == {"absent"}
    assert found["gpu0.free"].level == "warn"


def test_a_healthy_host_is_fit(nvml: NvmlMaker) -> None:
    found = findings(nvml({}))
    assert worst(found.values()) == "ok"
    assert found["gpu0.free"].seen == "4 of 146432 MiB in use, no process"


@pytest.mark.parametrize(
    ("change", "name", "level", "seen", "mend"),
    [
        ({"processes": [(1, 70_000)]}, "gpu0.free", "unfit", "pid 1 (", "kill 1"),
        ({"used_mib": 30_000}, "gpu0.free", "unfit", "30000 of 146432 MiB in use, no process", "nvidia-smi"),
        ({"reasons": 0x8 | 0x1}, "gpu0.throttle", "unfit", "hardware slowdown", "PERFORMANCE"),
        ({"reasons": 1 << 30}, "gpu0.throttle", "unfit", "reason 0x40000000", "PERFORMANCE"),
        ({"persistence": 0}, "gpu0.clocks", "warn", "persistence mode is off", "-pm 1"),
        ({"ecc": 2}, "gpu0.ecc", "unfit", "2 uncorrected", "out of service"),
        ({"remap_pending": 1}, "gpu0.ecc", "unfit", "waits for a reset", "out of service"),
        ({"mig": 1}, "gpu0.mode", "warn", "MIG is on", "without MIG"),
        ({"width": 8}, "gpu0.mode", "warn", "fewer lanes", "lspci"),
    ],
)
def test_each_fault_is_found_with_what_mends_it(
    nvml: NvmlMaker, change: dict[str, object], name: str, level: str, seen: str, mend: str
) -> None:
    found = findings(nvml(change))
    assert found[name].level == level
    assert seen in found[name].seen and mend in found[name].mend
    others = [finding for key, finding in found.items() if key != name]
    assert worst(others) == "ok"


def test_a_lost_gpu_is_unfit(nvml: NvmlMaker) -> None:
    opened = nvml({}, {})
    del opened._nvml.cards[1]["used_mib"]
    opened._nvml.nvmlDeviceGetMemoryInfo = lambda index: opened._nvml._get(index, "used_mib") and _Memory
    found = findings(opened)
    assert found["gpu1"].level == "unfit" and "does not answer" in found["gpu1"].seen
    assert found["gpu0"].level == "ok"
    assert list(opened.used_mib([0, 1])) == [0]


class _Memory:
    used = 4 << 20
    total = 143 << 30


def test_links(nvml: NvmlMaker) -> None:
    joined = nvml({"nvlinks": 18}, {"nvlinks": 18})
    assert findings(joined)["topology"].seen == "every pair: NVLink x18"
    uneven = nvml({}, {}, {}, links={(0, 1): 10, (0, 2): 50, (1, 2): 50})
    topology = findings(uneven)["topology"]
    assert topology.level == "warn"
    assert topology.seen.startswith("PCIe switch: 0-1; across NUMA nodes: 0-2 1-2")


def test_xid() -> None:
    assert gpu_fitness.xid(["6,1,1;NVRM: loading"]).level == "ok"
    found = gpu_fitness.xid(["4,1,1;NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus."])
    assert found.level == "warn" and "Xid 79 on PCI:0000:4b:00" in found.seen
    assert gpu_fitness.xid("Operation not permitted").level == "absent"


def test_no_driver_is_said_not_guessed() -> None:
    found = findings("no NVIDIA driver answers: Library Not Found")
    assert list(found) == ["gpu"] and found["gpu"].level == "absent"
    assert "Library Not Found" in found["gpu"].seen


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, [0, 1, 2, 3]),
        ("2,3", [2, 3]),
        (" 3 , 0", [3, 0]),
        ("GPU-3", [3]),
        ("GPU-3000,1", [3, 1]),
        ("", []),
        # CUDA reads no further than what it cannot use: a number too high, -1, nothing, a UUID that is not one GPU's.
        ("0,7,1", [0]),
        ("-1,1", []),
        ("0,,1", [0]),
        ("1,1", [1]),
        ("GPU-,1", []),
        ("MIG-4711", []),
    ],
)
def test_visible_indices(
    nvml: NvmlMaker, monkeypatch: pytest.MonkeyPatch, visible: str | None, seen: list[int]
) -> None:
    opened = nvml({}, {}, {}, {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_indices(opened, env, 4) == seen
    assert visible_indices(opened, env, 1) == seen[:1]
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert visible_indices(opened, {}, 4) == seen


def test_a_gpu_that_is_not_permitted_is_none_for_cuda(
    nvml: NvmlMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML counts the GPUs of the host, CUDA those that the container was given."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    opened = nvml({"fault": NVMLError_NoPermission("Insufficient Permissions")}, {}, {})
    assert visible_indices(opened, {}, 4) == [1, 2]
    assert visible_indices(opened, {"CUDA_VISIBLE_DEVICES": "1"}, 4) == [2]
    assert opened.names(opened.permitted()) == ["NVIDIA H200"] * 2
    found = findings(opened)
    assert (found["gpu0"].level, found["gpu1"].level) == ("absent", "ok")
    assert found["gpu0"].seen == "not for this process to use: Insufficient Permissions"
    # The control: one that is asked for and cannot be had is no less unfit.
    assert {f.name: f for f in gpu_fitness.examine(opened, [0])}["gpu0"].level == "unfit"


def test_a_gpu_that_fell_off_its_bus_is_told_and_never_a_traceback(
    nvml: NvmlMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    opened = nvml({}, {"fault": NVMLError("GPU is lost")})
    assert opened.uuids() == ["GPU-0000", ""]
    assert opened.names([0, 1]) == ["NVIDIA H200", "unknown"]
    assert opened.used_mib([0, 1]) == {0: 4}
    assert opened.processes(1) is None and opened.busy_percent(1) is None
    assert set(opened.throttle_s([0, 1])) == {(0, "power"), (0, "thermal")}
    assert opened.link(0, 1) == "unknown"
    assert opened.silence(0) is None and str(opened.silence(1)) == "GPU is lost"
    # It stays in its place: CUDA counts it until it is gone.
    assert visible_indices(opened, {}, 4) == [0, 1]
    seen = snapshot([], opened, [0, 1])
    assert seen.foreign is None and (0, "power") in seen.throttle_s


@pytest.mark.parametrize(
    ("visible", "told"),
    [
        (None, "this host shows 2; tokgate doctor tells more"),
        ("", "CUDA_VISIBLE_DEVICES= (of the engine): it is empty, which hides every GPU"),
        ("1", "CUDA_VISIBLE_DEVICES=1 (of the engine) names no more; this host shows 2"),
        ("0,7", "CUDA_VISIBLE_DEVICES=0,7 (of the engine): no GPU here is '7', and CUDA reads no further"),
        (
            "MIG-4711",
            "CUDA_VISIBLE_DEVICES=MIG-4711 (of the engine): MIG-4711 is a part of a GPU; tokgate locks "
            "and watches whole ones: turn MIG off, or name another",
        ),
    ],
)
def test_why_no_more_gpus_are_visible(
    nvml: NvmlMaker, monkeypatch: pytest.MonkeyPatch, visible: str | None, told: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert why_no_more(nvml({}, {}), env) == told


def test_a_part_of_a_gpu_is_a_class_of_its_own(nvml: NvmlMaker) -> None:
    """Its figures would else be held against baselines of the whole GPU, or become some."""
    opened = nvml({"mig": 1}, {}, {"mig": None})
    assert opened.names([0, 1, 2]) == ["NVIDIA H200 MIG", "NVIDIA H200", "NVIDIA H200"]
    assert host_class("gpu", opened.names([0])) == "nvidia-h200-mig"


def test_unlike_gpus_may_be_numbered_otherwise(nvml: NvmlMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    mixed, alike = nvml({"name": "NVIDIA L4"}, {}), nvml({}, {})
    told = numbered_otherwise(mixed, {})
    assert told is not None and "unlike GPUs (NVIDIA L4, NVIDIA H200)" in told
    assert numbered_otherwise(mixed, {"CUDA_VISIBLE_DEVICES": "1"}) == told
    for env in ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES": "GPU-1"}):
        assert numbered_otherwise(mixed, env) is None
    assert numbered_otherwise(alike, {}) is None


def test_a_hung_nvml_holds_nobody() -> None:
    began = time.monotonic()
    assert gpu.within(0.1, lambda: time.sleep(2), None) is None
    assert time.monotonic() - began < 1.5
    assert gpu.within(5, lambda: 7, None) == 7


class Driver(FakeNvml):
    """NVML whose first call does something."""

    def __init__(self, first: Callable[[], object]) -> None:
        super().__init__([HEALTHY])
        self.nvmlInit = first


def raising(error: Exception) -> Callable[[], object]:
    def first() -> object:
        raise error

    return first


@pytest.mark.parametrize(
    ("first", "told", "level"),
    [
        (
            raising(NVMLError_LibraryNotFound("NVML Shared Library Not Found")),
            "no NVIDIA driver answers: NVML Shared Library Not Found",
            "absent",
        ),
        (
            raising(NVMLError_DriverNotLoaded("Driver Not Loaded")),
            "no NVIDIA driver answers: Driver Not",
            "absent",
        ),
        (
            raising(NVMLError("Driver/library version mismatch")),
            "its NVIDIA driver does not answer: Driver/library version mismatch",
            "unfit",
        ),
        (lambda: time.sleep(3), "NVML gave no answer within 0.2 s: a GPU or its driver hangs", "unfit"),
    ],
)
def test_a_driver_that_does_not_answer_is_no_host_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, first: Callable[[], object], told: str, level: str
) -> None:
    """Else a runner whose driver was updated under it would be given the emulated engine, and be green."""
    monkeypatch.setitem(sys.modules, "pynvml", Driver(first))
    monkeypatch.setattr(gpu, "OPEN_S", 0.2)
    opened = gpu.open_nvml()
    assert isinstance(opened, str) and opened.startswith(told)
    (found,) = gpu_fitness.examine(opened, None)
    assert found.level == level and told in found.seen
    if level == "absent":
        assert engines.choose(None, None)[0].kind == "emulated"
    else:
        with pytest.raises(HostFault, match="cannot tell its GPUs") as caught:
            engines.choose(None, None)
        assert told in caught.value.headline and "-m emulated" in caught.value.details[1]


def test_a_driver_that_answers_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver(lambda: None))
    opened = gpu.open_nvml()
    assert isinstance(opened, Nvml) and opened.count == 1


def test_what_nvml_does_not_report_is_no_none_in_a_message(nvml: NvmlMaker) -> None:
    """As under MIG: no utilisation, no memory of a process."""
    silent = {"processes": [(os.getpid(), None)], "utilisation": None, "ecc": None, "remap_pending": 1}
    opened = nvml(silent)
    found = findings(opened)
    assert "MiB not known)" in found["gpu0.free"].seen
    # A board that waits for a reset is unfit, whether or not it counts errors.
    assert found["gpu0.ecc"].level == "unfit"
    assert found["gpu0.ecc"].seen.startswith("an unknown number of uncorrected errors since the driver")
    assert not [f for f in found.values() if "None" in f.seen]


def test_what_is_asked_in_a_thread_fails_where_it_is_asked() -> None:
    """In the thread nobody would see it: pytest would, as a warning that is an error, in some other test."""
    with pytest.raises(ZeroDivisionError):
        gpu.within(5, lambda: 1 // 0, None)


def test_host_class() -> None:
    assert host_class("gpu", ["NVIDIA H200"]) == "nvidia-h200"
    assert host_class("gpu", ["NVIDIA H200"] * 8) == "nvidia-h200-x8"
    assert host_class("gpu", ["NVIDIA RTX PRO 6000 Blackwell Server Edition"]) == (
        "nvidia-rtx-pro-6000-blackwell-server-edition"
    )
    assert host_class("emulated", scenario="founding-first-day") == "emulated-founding-first-day"
    cpu = host_class("cpu")
    assert cpu.startswith("cpu-") and cpu.endswith(f"-{os.cpu_count()}c")
    assert cpu == cpu.lower() and " " not in cpu
