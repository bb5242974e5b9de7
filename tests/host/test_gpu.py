"""GPU facts from a fake NVML, and what is said of a host without one."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tokgate.host import gpu, gpu_fitness
from tokgate.host.finding import Finding
from tokgate.host.fitness import worst
from tokgate.host.gpu import Nvml

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


def test_visible_indices(nvml: NvmlMaker) -> None:
    opened = nvml({}, {}, {}, {})
    assert gpu.visible_indices(opened, {"CUDA_VISIBLE_DEVICES": "2,3"}, 2) == [2, 3]
    assert gpu.visible_indices(opened, {"CUDA_VISIBLE_DEVICES": "GPU-3"}, 1) == [3]
    assert gpu.visible_indices(opened, {"CUDA_VISIBLE_DEVICES": ""}, 1) == []


def test_host_class() -> None:
    assert gpu.host_class("gpu", ["NVIDIA H200"]) == "nvidia-h200"
    assert gpu.host_class("gpu", ["NVIDIA H200"] * 8) == "nvidia-h200-x8"
    assert gpu.host_class("gpu", ["NVIDIA RTX PRO 6000 Blackwell Server Edition"]) == (
        "nvidia-rtx-pro-6000-blackwell-server-edition"
    )
    assert gpu.host_class("emulated", scenario="founding-first-day") == "emulated-founding-first-day"
    cpu = gpu.host_class("cpu")
    assert cpu.startswith("cpu-") and cpu.endswith(f"-{os.cpu_count()}c")
    assert cpu == cpu.lower() and " " not in cpu
