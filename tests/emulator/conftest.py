"""Starts emulated servers, talks to them, and makes sure that none is left."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

READY = "The server is fired up and ready to roll!"
RUNNING = re.compile(r"Uvicorn running on http://([\d.]+):(\d+)")
PATIENCE_S = 20.0


@dataclass
class Reply:
    """A response: status, headers, body, and for streams the events with their arrival times."""

    status: int
    headers: dict[str, str]
    body: bytes
    events: list[Any] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    complete: bool = True

    def drift(self, step_s: float) -> float:
        """How far the schedule of a stream drifts from one of ``step_s``, as a share of it.

        A loaded machine delays single steps and hurries none, so the least delayed of the first and of the
        last third tell what was scheduled.
        """
        late = [stamp - i * step_s for i, stamp in enumerate(self.times_s)]
        third = len(late) // 3
        return (min(late[-third:]) - min(late[:third])) / (2 * third * step_s)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Emulated:
    """One running server process."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self.port = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_bytes().decode(errors="replace")  # carriage returns stay

    def wait_for(self, text: str, timeout_s: float = PATIENCE_S) -> None:
        """Until the log holds a text; the process may end meanwhile."""
        deadline = time.monotonic() + timeout_s
        while text not in self.log:
            if time.monotonic() > deadline or (self.process.poll() is not None and text not in self.log):
                raise AssertionError(f"{text!r} not in the log:\n{self.log[-3000:]}")
            time.sleep(0.01)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Until something is so."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.log[-3000:]
            time.sleep(0.01)

    def wait_exit(self, timeout_s: float = PATIENCE_S) -> int:
        return self.process.wait(timeout_s)

    def wait_ready(self) -> Emulated:
        self.wait_for(READY)
        return self.find_port()

    def find_port(self) -> Emulated:
        self.wait_for("Uvicorn running on")
        match = RUNNING.search(self.log)
        assert match
        self.port = int(match[2])
        return self

    def request(
        self, method: str, path: str, body: Any = None, *, timeout_s: float = PATIENCE_S, stream: bool = False
    ) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            reply = Reply(response.status, headers, b"")
            if not stream:
                reply.body = response.read()
                return reply
            try:
                for line in response:
                    if line.startswith(b"data: "):
                        text = line[6:].decode().rstrip()
                        reply.raw.append(text)
                        if text != "[DONE]":
                            reply.times_s.append(time.monotonic())
                            reply.events.append(json.loads(text))
            except (http.client.HTTPException, OSError, TimeoutError):
                reply.complete = False
            reply.complete = reply.complete and reply.raw[-1:] == ["[DONE]"]
            return reply
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Reply:
        return self.request("GET", path, **options)

    def generate(
        self,
        prompt: Any = (1, 2, 3),
        tokens: int = 24,
        *,
        stream: bool = False,
        timeout_s: float = PATIENCE_S,
        **extra: Any,
    ) -> Reply:
        """`/generate` of token ids, greedy."""
        body = {
            "input_ids": list(prompt),
            "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
            "stream": stream,
            **extra,
        }
        return self.request("POST", "/generate", body, stream=stream, timeout_s=timeout_s)

    def tree(self) -> dict[str, int]:
        """Process titles below the server, with their ids."""
        found = {}
        for child in psutil.Process(self.pid).children(recursive=True):
            # One may end between the list and its title.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                title = Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0")[0].decode()
                found[title] = child.pid
        return found


class Starter:
    """Starts servers and, at the end, makes sure that nothing of them is left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: list[Emulated] = []
        self._shared: dict[tuple[str, ...], Emulated] = {}
        self._marker = f"TOKGATE_TEST_{os.getpid()}_{time.monotonic_ns()}"

    def __call__(self, *flags: str, scenario: str = "steady", env: dict[str, str] | None = None) -> Emulated:
        """A new server process; not yet ready."""
        log = self._folder / f"server{len(self._servers)}.log"
        command = [sys.executable, "-m", "tokgate.emulator", "--model-path", "target", "--port", "0"]
        command += ["--scenario", scenario, *flags]
        environment = {**os.environ, self._marker: "1", **(env or {})}
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        server = Emulated(process, log)
        self._servers.append(server)
        return server

    def shared(self, *flags: str) -> Emulated:
        """A ready server with these flags, the same for every caller."""
        if flags not in self._shared:
            self._shared[flags] = self(*flags).wait_ready()
        return self._shared[flags]

    def close(self) -> None:
        """End every server; fail if a process is left."""
        for server in self._servers:
            if server.process.poll() is None:
                server.process.kill()
            server.process.wait(PATIENCE_S)
        left = _with_marker(self._marker, wait_s=5.0)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"processes left: {left}"


@pytest.fixture
def emulate(tmp_path: Path) -> Iterator[Starter]:
    """Starts servers of this test's own: ``emulate("--fault", ...)``."""
    starter = Starter(tmp_path)
    yield starter
    starter.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Emulated]]:
    """Healthy servers that the tests of a module share, by their flags."""
    starter = Starter(tmp_path_factory.mktemp("emulated"))
    yield starter.shared
    starter.close()


def _with_marker(marker: str, wait_s: float) -> list[int]:
    """Processes that carry an environment variable, once they had time to go."""
    deadline = time.monotonic() + wait_s
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if marker.encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


@pytest.fixture
def with_marker() -> Callable[[str], list[int]]:
    """Finds processes by an environment variable, at once."""
    return lambda marker: _with_marker(marker, 0.0)
