"""Findings about GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from tokgate.host import marker
from tokgate.host.finding import Finding
from tokgate.host.gpu import Broken, Nvml
from tokgate.host.gpu_facts import Gpu

# What a driver keeps for itself on an idle data-centre GPU stays under this.
IDLE_MIB = 1024
_XID = re.compile(r"NVRM: Xid \(([^)]*)\): (\d+)")
_XIDS_SHOWN = 3


def examine(nvml: Nvml | str, gpus: Sequence[int] | None) -> list[Finding]:
    """Driver, every GPU, their links, and the driver's error messages."""
    if isinstance(nvml, Broken):
        return [Finding("gpu", "unfit", nvml, "nvidia-smi; sudo dmesg | grep -i nvrm")]
    if isinstance(nvml, str):
        return [Finding("gpu", "absent", f"no GPU: {nvml}", "only the emulated and the cpu engine can run")]
    indices = nvml.permitted() if gpus is None else [index for index in range(nvml.count) if index in gpus]
    findings = [_driver(nvml)]
    if gpus is None:
        findings += [
            Finding(f"gpu{index}", "absent", f"not for this process to use: {nvml.silence(index)}")
            for index in range(nvml.count)
            if index not in indices
        ]
    if not indices:
        asked = "" if gpus is None else f" of those asked ({', '.join(map(str, gpus))})"
        findings.append(Finding("gpu", "unfit", f"the driver shows no GPU{asked}", "nvidia-smi -L"))
    for index in indices:
        name = f"gpu{index}"
        try:
            card = nvml.gpu(index)
        except nvml.error as error:
            findings.append(
                Finding(name, "unfit", f"it does not answer: {error}", "sudo dmesg | grep -i nvrm")
            )
            continue
        findings += [
            Finding(name, "ok", f"{card.name}, {card.memory_total_mib} MiB, {card.uuid}"),
            _free(name, card),
            _clocks(name, card),
            _throttle(name, card),
            _ecc(name, card),
            _mode(name, card),
        ]
    findings.append(_topology(nvml, indices))
    findings.append(xid(_kernel_messages()))
    return findings


def xid(messages: Sequence[str] | str) -> Finding:
    """The driver's error reports in the kernel's messages; a text says why these cannot be read."""
    if isinstance(messages, str):
        return Finding(
            "xid", "absent", f"kernel messages cannot be read: {messages}", "sudo dmesg | grep Xid"
        )
    found = [match for line in messages if (match := _XID.search(line))]
    if not found:
        return Finding("xid", "ok", "no Xid in the kernel's messages")
    shown = ", ".join(f"Xid {match[2]} on {match[1]}" for match in found[-_XIDS_SHOWN:])
    return Finding("xid", "warn", f"{len(found)} since boot, last: {shown}", "sudo dmesg | grep Xid")


def _driver(nvml: Nvml) -> Finding:
    if nvml.driver is None:
        return Finding("driver", "absent", "NVML does not say its version")
    return Finding("driver", "ok", f"{nvml.driver}, serves CUDA up to {nvml.cuda or 'unknown'}")


def _free(name: str, card: Gpu) -> Finding:
    name = f"{name}.free"
    used = f"{card.memory_used_mib} of {card.memory_total_mib} MiB in use"
    if card.processes:
        who = ", ".join(f"pid {p.pid} ({p.name}, {p.size})" for p in card.processes)
        return Finding(name, "unfit", f"{used} by {who}", _mend_processes([p.pid for p in card.processes]))
    if card.memory_used_mib > IDLE_MIB:
        why = "NVML does not list processes" if card.processes is None else "no process is listed"
        return Finding(
            name, "unfit", f"{used}, {why}: a leftover, or another container", "nvidia-smi; lsof /dev/nvidia*"
        )
    if card.processes is None:
        return Finding(name, "warn", f"{used}; NVML does not list processes here", "nvidia-smi")
    return Finding(name, "ok", f"{used}, no process")


def _mend_processes(pids: Sequence[int]) -> str:
    owners = {item.process.pid: item.owner for item in marker.find_all()}
    if all(owners.get(pid) == "dead" for pid in pids):
        return "tokgate reap"
    if all(owners.get(pid) == "alive" for pid in pids):
        return "another tokgate measures there: wait for it, or choose other GPUs"
    return f"stop them: kill {' '.join(map(str, pids))}"


def _clocks(name: str, card: Gpu) -> Finding:
    name = f"{name}.clocks"
    if card.sm_clock_mhz is None:
        return Finding(name, "absent", "NVML does not report clocks")
    most = "" if card.sm_clock_max_mhz is None else f" of {card.sm_clock_max_mhz}"
    heat = "temperature not reported" if card.temperature_c is None else f"{card.temperature_c} C"
    seen = f"SM {card.sm_clock_mhz}{most} MHz, {heat}, {_watts(card)}"
    if card.persistence is False:
        return Finding(name, "warn", f"{seen}; persistence mode is off", "sudo nvidia-smi -pm 1")
    return Finding(name, "ok", seen)


def _throttle(name: str, card: Gpu) -> Finding:
    name = f"{name}.throttle"
    if card.throttle is None:
        return Finding(name, "absent", "NVML does not report throttle reasons")
    if card.throttle:
        return Finding(
            name, "unfit", f"slowed down by {', '.join(card.throttle)}", "nvidia-smi -q -d PERFORMANCE,POWER"
        )
    return Finding(name, "ok", "nothing slows it down")


def _ecc(name: str, card: Gpu) -> Finding:
    name = f"{name}.ecc"
    if card.ecc_uncorrected or card.remap_pending:
        errors = "an unknown number of" if card.ecc_uncorrected is None else card.ecc_uncorrected
        pending = "; a row remapping waits for a reset" if card.remap_pending else ""
        seen = f"{errors} uncorrected errors since the driver was loaded{pending}"
        return Finding(name, "unfit", seen, "take the host out of service; nvidia-smi -q -d ECC,ROW_REMAPPER")
    if card.ecc_uncorrected is None:
        return Finding(name, "absent", "NVML does not report ECC errors")
    return Finding(name, "ok", "no uncorrected error since the driver was loaded")


def _mode(name: str, card: Gpu) -> Finding:
    name = f"{name}.mode"
    seen = f"PCIe {card.pcie or 'unknown'}"
    if card.mig:
        return Finding(
            name,
            "warn",
            f"{seen}; MIG is on: results are not those of the whole GPU",
            "use a host without MIG",
        )
    narrow = re.match(r"gen\d+ x(\d+) \(max gen\d+ x(\d+)\)", card.pcie or "")
    if narrow and int(narrow[1]) < int(narrow[2]):
        return Finding(name, "warn", f"{seen}: fewer lanes than it has", "reseat the board; lspci -vv")
    return Finding(name, "ok", seen)


def _topology(nvml: Nvml, indices: Sequence[int]) -> Finding:
    if len(indices) < 2:
        return Finding("topology", "ok", "one GPU" if indices else "none")
    pairs: dict[str, list[str]] = {}
    for place, first in enumerate(indices):
        for second in indices[place + 1 :]:
            pairs.setdefault(nvml.link(first, second), []).append(f"{first}-{second}")
    if len(pairs) == 1:
        return Finding("topology", "ok", f"every pair: {next(iter(pairs))}")
    seen = "; ".join(f"{kind}: {' '.join(found)}" for kind, found in pairs.items())
    return Finding("topology", "warn", f"{seen}: ranks do not see the same links", "nvidia-smi topo -m")


def _kernel_messages() -> list[str] | str:
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return error.strerror or str(error)
    lines = []
    try:
        while True:
            try:
                lines.append(os.read(descriptor, 8192).decode(errors="replace"))
            except BrokenPipeError:
                continue  # the ring went over what we had not read yet
            except BlockingIOError:
                return lines
            except OSError as error:
                return lines or (error.strerror or str(error))
    finally:
        os.close(descriptor)


def _watts(card: Gpu) -> str:
    if card.power_w is None:
        return "power not reported"
    return f"{card.power_w:.0f} W" + (f" of {card.power_limit_w:.0f} W" if card.power_limit_w else "")
