"""Processes, marks and ports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tokgate.host import marker, ports, proc

SLEEP = "import time; print(flush=True); time.sleep(60)"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", SLEEP],
        stdout=subprocess.PIPE,
        env={**os.environ, **marker.variables("mark-of-the-sleeper")},
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_facts_of_a_process(sleeper: subprocess.Popen[bytes]) -> None:
    found = proc.read(sleeper.pid)
    assert found is not None and found.alive and found.session == sleeper.pid
    assert found in proc.descendants(os.getpid(), proc.table())
    assert proc.environment(sleeper.pid) is not None
    assert (proc.rss_bytes(sleeper.pid) or 0) > 1 << 20
    io = proc.io(sleeper.pid)
    assert io is not None and io.rchar > 1000
    assert 0 <= proc.age_s(found) < 60
    assert "time.sleep" in (proc.command_line(sleeper.pid) or "")


def test_nothing_is_known_of_a_process_that_is_not() -> None:
    for fact in (proc.read, proc.environment, proc.rss_bytes, proc.io, proc.command_line, proc.exit_status):
        assert fact(2**22 + 1) is None  # type: ignore[operator]


def test_exit_status_of_a_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "import os; os.abort()"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert proc.exit_status(child.pid) == -signal.SIGABRT
    found = proc.read(child.pid)
    assert found is not None and not found.alive
    child.wait()


def test_a_later_process_of_the_same_id_is_never_hit(sleeper: subprocess.Popen[bytes]) -> None:
    found = proc.read(sleeper.pid)
    assert found is not None
    other = proc.Process(found.pid, found.parent, found.session, "S", found.start_ticks - 1, found.name)
    assert not proc.is_same(other) and not proc.send(other, signal.SIGKILL)
    assert sleeper.poll() is None
    assert proc.send(found, signal.SIGKILL)
    sleeper.wait()
    assert not proc.send(found, signal.SIGKILL)


def test_engines_that_rename_themselves_keep_their_mark() -> None:
    """setproctitle overwrites the environment in /proc unless it is told not to."""
    assert marker.variables("m")["SPT_NOENV"] == "1"


def test_mark_and_owner(sleeper: subprocess.Popen[bytes]) -> None:
    assert [process.pid for process in marker.find("mark-of-the-sleeper")] == [sleeper.pid]
    assert marker.find("mark-of-the") == []
    item = next(item for item in marker.find_all() if item.mark == "mark-of-the-sleeper")
    assert item.owner == "alive"
    killed = marker.kill("mark-of-the-sleeper")
    assert [process.pid for process in killed] == [sleeper.pid]
    assert marker.find("mark-of-the-sleeper") == []


@pytest.mark.parametrize(
    ("token", "state"),
    [("999999999/1/{ns}", "dead"), ("1/1/[1]", "elsewhere"), ("nonsense", "elsewhere"), ("", "elsewhere")],
)
def test_owner_that_is_not_alive(token: str, state: str) -> None:
    namespace = marker.owner_token().split("/")[2]
    environment = {**os.environ, marker.MARK: f"mark-{state}", marker.OWNER: token.format(ns=namespace)}
    process = subprocess.Popen([sys.executable, "-S", "-c", SLEEP], stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        states = {item.owner for item in marker.find_all() if item.process.pid == process.pid}
        assert states == {state}
    finally:
        process.kill()
        process.communicate()


def test_ports() -> None:
    given = {ports.free_port() for _ in range(20)}
    assert len(given) == 20
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not ports.is_free(port)
        assert f"pid {os.getpid()} (" in ports.holder(port)
    assert ports.is_free(port)
    assert ports.holder(port) == "no listening socket is visible"


def test_two_processes_that_seed_alike_are_given_different_ports() -> None:
    code = (
        "import random; random.seed(0); from tokgate.host.ports import free_port as f; print(f(), f(), f())"
    )
    command = [sys.executable, "-c", code]
    given = {subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(given) == 2, given


def test_a_port_in_time_wait_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()
        time.sleep(0.01)
        client.close()
    assert ports.is_free(port)
