"""Engines that die, and hosts that are not fit to start one."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.server.launches import Golden, SpecMaker
from tokgate.config.engine import Engine
from tokgate.errors import (
    Exited,
    InterpreterMissing,
    ModelMissing,
    PortTaken,
    ResultsUnwritable,
)
from tokgate.server import spec as preflight
from tokgate.server.launch import start


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("died-with-traceback", {"weights": "raise"}),
        ("died-by-signal", {"capture": "segv"}),
        ("died-silently", {"kv": "silent-exit"}),
        ("died-at-first-generation", {"generate": "silent-exit"}),
        ("worker-aborted-unnoticed", {"warmup": "die-child"}),
    ],
)
def test_death_is_told_with_its_cause(
    fake_spec: SpecMaker, golden: Golden, name: str, options: dict[str, str]
) -> None:
    with pytest.raises(Exited) as caught:
        start(fake_spec(**options))
    golden(name, caught.value)


def test_worker_that_dies_before_it_was_seen(fake_spec: SpecMaker) -> None:
    with pytest.raises(Exited, match=r"\(pid \d+\) killed by SIGABRT") as caught:
        start(fake_spec(step="0", imports="die-child-at-once"))
    assert "had not noticed" in caught.value.details[-1]


@pytest.mark.parametrize(
    "fault",
    [
        "abort:4",
        "crash-first-replay",
        pytest.param("start-exit:weights", marks=pytest.mark.slow),
    ],
)
def test_emulated_deaths(emulated_spec: SpecMaker, golden: Golden, fault: str) -> None:
    with pytest.raises(Exited) as caught:
        start(emulated_spec(fault))
    golden(f"emulated-{fault.removesuffix(':4').replace(':', '-')}", caught.value)


def test_taken_port_names_its_holder(fake_spec: SpecMaker, golden: Golden) -> None:
    spec = fake_spec()
    with socket.socket() as other:
        other.bind((spec.host, spec.port))
        other.listen()
        with pytest.raises(PortTaken) as caught:
            start(spec)
    golden("port-taken", caught.value)
    assert not spec.log_path.exists()


def test_port_lost_in_a_race(fake_spec: SpecMaker) -> None:
    spec = fake_spec(weights="sleep")
    taken: list[socket.socket] = []

    def take(phase: str) -> None:
        if phase == "weights":
            taken.append(socket.create_server((spec.host, spec.port)))

    with pytest.raises(PortTaken, match="is taken: pid"):
        start(spec, take)
    taken[0].close()


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("interpreter-missing", ("/nowhere/bin/python", "-m", "sglang.launch_server")),
        ("interpreter-not-executable", ("{file}", "-m", "sglang.launch_server")),
        ("launcher-missing", (sys.executable, "-m", "no_such_engine")),
    ],
)
def test_wrong_interpreter(
    fake_spec: SpecMaker, golden: Golden, tmp_path: Path, name: str, argv: tuple[str, ...]
) -> None:
    file = tmp_path / "not-a-program"
    file.touch()
    with pytest.raises(InterpreterMissing) as caught:
        start(fake_spec({"argv": tuple(item.format(file=file) for item in argv)}))
    golden(name, caught.value)


def test_missing_model(fake_spec: SpecMaker, golden: Golden, tmp_path: Path) -> None:
    spec = fake_spec()
    changes: dict[str, Any] = {
        "engine": Engine(name="sglang", kind="gpu", version="0.5.15.post1"),
        "argv": (*spec.argv, "--model-path", str(tmp_path / "gone")),
    }
    with pytest.raises(ModelMissing) as caught:
        start(fake_spec(changes))
    golden("model-missing", caught.value)
    (tmp_path / "gone").mkdir()
    with pytest.raises(ModelMissing, match=r"has no config\.json"):
        start(fake_spec(changes))


def test_log_folder_that_cannot_be_written(fake_spec: SpecMaker, golden: Golden, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResultsUnwritable) as caught:
        start(fake_spec({"log_path": tmp_path / "file" / "engine.log"}))
    golden("log-unwritable", caught.value)


def test_disk_that_fills_up_while_it_starts(
    fake_spec: SpecMaker, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = fake_spec(weights="hang")
    monkeypatch.setattr("tokgate.server.launch.room_left", lambda path: not path.stat().st_size)
    with pytest.raises(ResultsUnwritable) as caught:
        start(spec)
    golden("disk-full", caught.value)


def test_engine_that_dies_of_a_full_disk(fake_spec: SpecMaker) -> None:
    with pytest.raises(ResultsUnwritable, match="No space left on device"):
        start(fake_spec(weights="no-space"))


def test_a_really_full_disk(tmp_path: Path) -> None:
    """On a file system of half a megabyte, in a mount namespace of its own."""
    probe = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*probe, "true"], check=False).returncode:
        pytest.skip("this host permits no mount namespace: nothing is known of a really full disk")
    script = f"""
        import subprocess
        from pathlib import Path
        from tokgate.server import spec
        from tokgate.errors import ResultsUnwritable
        folder = Path({str(tmp_path)!r})
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)], check=True)
        assert spec.room_left(folder / "engine.log")
        try:
            spec.check_room(folder / "engine.log")
        except ResultsUnwritable as error:
            print(error.headline)
        try:
            while True:
                with open(folder / "ballast", "ab", buffering=0) as file:
                    file.write(bytes(4096))
        except OSError:
            pass
        print(spec.room_left(folder / "engine.log"))
    """
    done = subprocess.run(
        [*probe, sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    headline, left = done.stdout.splitlines()
    assert headline.startswith("the engine's log cannot be written to ")
    assert headline.endswith(": No space left on device")
    assert left == "False"


def test_the_control_has_room(tmp_path: Path) -> None:
    preflight.check_room(tmp_path / "logs" / "engine.log")
    assert preflight.room_left(tmp_path / "logs" / "engine.log")
