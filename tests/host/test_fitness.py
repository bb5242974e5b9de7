"""Findings about this host, and what ``tokgate doctor`` makes of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokgate.cli.doctor import app
from tokgate.host import contention, fitness, gpu, marker, os_fitness, proc, py_spy
from tokgate.host.finding import Finding
from tokgate.host.gpu import Nvml


def test_every_finding_says_what_was_seen(tmp_path: Path) -> None:
    found = fitness.examine(tmp_path, nvml="no NVIDIA driver answers: planted")
    names = [finding.name for finding in found]
    for name in (
        "gpu",
        "leftovers",
        "ptrace",
        "receive stamps",
        "steal",
        "governor",
        "cpu speed",
        "port",
        "disk",
        "/dev/shm",
    ):
        assert name in names
    assert all(finding.seen for finding in found)
    assert all(finding.mend for finding in found if finding.level == "unfit")


def test_worst() -> None:
    levels = ["ok", "warn", "absent"]
    assert fitness.worst([Finding("x", level, "seen") for level in levels]) == "warn"  # type: ignore[arg-type]
    assert fitness.worst([]) == "ok"


def test_kernel_stamps_work_here() -> None:
    found = os_fitness.receive_stamps()
    assert found.level == "ok", found.seen


def test_tracer_is_tried_on_a_real_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refused = tmp_path / "py-spy"
    refused.write_text("#!/bin/sh\necho 'Permission Denied: try sudo' >&2\nexit 1\n")
    refused.chmod(0o755)
    monkeypatch.setattr(py_spy, "find", lambda: refused)
    found = os_fitness.tracer()
    assert found.level == "warn" and "Permission Denied" in found.seen and "SYS_PTRACE" in found.mend


def test_missing_tracer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy, "find", lambda: None)
    assert "py-spy is missing" in os_fitness.tracer().seen


@pytest.mark.parametrize(("share", "level"), [(0.0, "ok"), (0.05, "warn"), (0.3, "unfit")])
def test_steal(monkeypatch: pytest.MonkeyPatch, share: float, level: str) -> None:
    readings: Iterator[float] = iter([100.0, 100.0 + share * 0.3 * (os.cpu_count() or 1)])
    monkeypatch.setattr(contention, "steal_s", lambda: next(readings))
    assert os_fitness.steal().level == level


@pytest.mark.parametrize(
    ("slow", "cpus", "level", "words"),
    [
        (0, 16, "ok", "the 16 CPUs are alike"),
        (2, 16, "ok", "2 of 16 CPUs took 1.6 x"),
        (9, 16, "warn", "9 of 16 CPUs took 1.6 x as long as the quickest"),
        (1, 2, "absent", "too few"),
    ],
)
def test_cpus_that_are_not_alike(
    monkeypatch: pytest.MonkeyPatch, slow: int, cpus: int, level: str, words: str
) -> None:
    found = {cpu: 0.16 if cpu < slow else 0.1 + 0.0001 * cpu for cpu in range(cpus)}
    monkeypatch.setattr(os_fitness.cpu_speeds, "scan", lambda home: found)
    told = os_fitness.cpu_speed()
    assert told.level == level and words in told.seen


def test_steal_that_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "steal_s", lambda: None)
    assert os_fitness.steal().level == "absent"


@pytest.mark.parametrize(("free", "level"), [(10 << 30, "ok"), (1 << 30, "warn"), (1 << 20, "unfit")])
def test_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, level: str) -> None:
    usage = os_fitness.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(os_fitness.shutil, "disk_usage", lambda path: usage._replace(free=free))
    assert os_fitness.disk(tmp_path / "not" / "yet").level == level


def test_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    own = proc.read(os.getpid())
    assert own is not None
    monkeypatch.setattr(marker, "find_all", lambda: [marker.Marked(own, "mark", "alive")])
    assert os_fitness.leftovers().level == "ok"
    monkeypatch.setattr(marker, "find_all", lambda: [marker.Marked(own, "mark", "dead")])
    found = os_fitness.leftovers()
    assert found.level == "unfit" and f"pid {own.pid}" in found.seen and found.mend == "tokgate reap"


def test_doctor_prints_and_sets_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, nvml: Callable[..., Nvml]
) -> None:
    monkeypatch.setattr(marker, "find_all", list)
    monkeypatch.setattr(contention, "steal_s", lambda: 0.0)
    monkeypatch.setattr(fitness, "open_nvml", lambda: nvml({}))
    fit = CliRunner().invoke(app, [])
    assert fit.exit_code == 0, fit.output
    assert fit.output.splitlines()[-1] == "fit to measure"
    monkeypatch.setattr(fitness, "open_nvml", lambda: nvml({"processes": [(1, 70_000)], "used_mib": 70_000}))
    unfit = CliRunner().invoke(app, [])
    assert unfit.exit_code == 3
    assert unfit.output.splitlines()[-1] == "UNFIT: gpu0.free"
    data = json.loads(CliRunner().invoke(app, ["--json"]).output)
    assert data["worst"] == "unfit"
    found = {finding["name"]: finding for finding in data["findings"]}
    assert found["gpu0.free"]["level"] == "unfit" and "70000 MiB" in found["gpu0.free"]["seen"]


def test_doctor_of_gpus_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch, nvml: Callable[..., Nvml]
) -> None:
    monkeypatch.setattr(marker, "find_all", list)
    monkeypatch.setattr(fitness, "open_nvml", lambda: nvml({}))
    assert CliRunner().invoke(app, ["--gpus", "7"]).exit_code == 3
    assert CliRunner().invoke(app, ["--gpus", "x"]).exit_code == 2


def test_open_nvml_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    opened = gpu.open_nvml()
    assert isinstance(opened, str) and opened.startswith("no NVIDIA driver answers: ")


def test_py_spy_of_a_folder_of_packages_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `pip install --target` leaves it: in bin/ of a folder on the path, on no PATH."""
    monkeypatch.setattr(py_spy.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(py_spy.sysconfig, "get_path", lambda name: str(tmp_path / "scripts"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(py_spy.sys, "path", [str(tmp_path / "site"), ""])
    assert py_spy.find() is None
    for folder in ("path", "site/bin"):
        tool = tmp_path / folder / "py-spy"
        tool.parent.mkdir(parents=True)
        tool.touch(0o644)
        assert py_spy.find() != tool
        tool.chmod(0o755)
        assert py_spy.find() == tool
