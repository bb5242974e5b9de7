"""Nothing survives a tokgate that is killed, however it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.server.launches import SpecMaker
from tokgate.cli.reap import app
from tokgate.host import marker, ports
from tokgate.server.launch import LaunchSpec

ROOT = Path(__file__).parents[2]
OWNER = """
    import sys, time
    from pathlib import Path
    from tokgate.config.engine import Engine
    from tokgate.config.profiles import Profile
    from tokgate.host.lock import GpuLocks
    from tokgate.server import reaper
    from tokgate.server.launch import LaunchSpec, start
    port, log, *argv = sys.argv[1:]
    with GpuLocks(["GPU-test"]):
        server = start(LaunchSpec(
            Profile(name="baseline"), Engine("fake", "emulated", "0.5.15.post1"), tuple(argv), {},
            "127.0.0.1", int(port), Path(log), Path(log).parent,
        ))
        print(server.launch, flush=True)
        time.sleep(600)
"""


def _owner(spec: LaunchSpec, folder: Path) -> tuple[subprocess.Popen[str], str]:
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), str(spec.port), str(spec.log_path), *spec.argv],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TOKGATE_RUNTIME_DIR": str(folder)},
        start_new_session=True,
    )
    assert owner.stdout is not None
    mark = owner.stdout.readline().strip()
    assert mark
    return owner, mark


def _gone(condition: Callable[[], bool], within_s: float = 20.0) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_owner_leaves_nothing(fake_spec: SpecMaker, tmp_path: Path, number: signal.Signals) -> None:
    spec = fake_spec(imports="detach")
    locks = tmp_path / "locks"
    owner, mark = _owner(spec, locks)
    assert len(marker.find(mark)) == 3
    assert [path.name for path in locks.iterdir()] == ["GPU-test.lock"]
    # As a terminal's Ctrl-C does, to the whole group of the owner: the engine has one of its own.
    os.killpg(owner.pid, number)
    owner.communicate()
    assert _gone(lambda: not marker.find(mark))
    assert _gone(lambda: ports.is_free(spec.port))
    assert _gone(lambda: not list(locks.iterdir()))


COLLECTED = """
import os
from tokgate.server import reaper
owner, opened = os.getppid(), os.pidfd_open
def gone(pid):
    if pid == owner:
        raise ProcessLookupError(pid)
    return opened(pid)
os.pidfd_open = gone
reaper.main(owner)
"""


def test_an_owner_that_is_gone_when_its_reaper_looks_for_it(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(
        [sys.executable, "-S", "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **marker.variables("mark-of-the-collected")},
    )
    assert sleeper.stdout is not None
    sleeper.stdout.readline()
    watch = b"watch mark-of-the-collected\n"
    environment = {**os.environ, "TOKGATE_RUNTIME_DIR": str(tmp_path / "locks")}
    subprocess.run(
        [sys.executable, "-c", COLLECTED], input=watch, cwd=ROOT, env=environment, check=True, timeout=60
    )
    assert sleeper.wait(20) == -signal.SIGKILL
    sleeper.communicate()


def test_reap_kills_what_a_dead_tokgate_left_and_nothing_else(
    fake_spec: SpecMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = tmp_path / "locks"
    monkeypatch.setenv("TOKGATE_RUNTIME_DIR", str(locks))
    owner, mark = _owner(fake_spec(), locks)
    other, other_mark = _owner(fake_spec(), tmp_path / "other")
    try:
        # Without its reaper a killed owner leaves its engine behind.
        for process in marker.proc.descendants(owner.pid, marker.proc.table()):
            if "tokgate.server.reaper" in (marker.proc.command_line(process.pid) or ""):
                marker.proc.send(process, signal.SIGKILL)
        owner.kill()
        owner.communicate()
        left = marker.find(mark)
        assert len(left) == 2
        # Other tokgates of this host, and their leftovers, are none of this test's business.
        everything = marker.find_all
        monkeypatch.setattr(
            marker, "find_all", lambda: [m for m in everything() if m.mark in (mark, other_mark)]
        )
        shown = CliRunner().invoke(app, ["--dry-run"])
        assert shown.exit_code == 0 and len(marker.find(mark)) == 2
        assert all(f"pid {process.pid} (" in shown.output for process in left)
        assert "MiB resident" in shown.output and "s old" in shown.output
        done = CliRunner().invoke(app, [])
        assert done.exit_code == 0, done.output
        assert "1 stale lock and " in done.output
        assert marker.find(mark) == []
        assert len(marker.find(other_mark)) == 2
    finally:
        other.kill()
        other.communicate()
    assert _gone(lambda: not marker.find(other_mark))
