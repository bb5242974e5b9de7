"""What the load tests measure: scripted servers, canned responses, small workloads."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tokgate.config.workloads import Prompts, Workload
from tokgate.load.client import Deadlines

ROOT = Path(__file__).parents[2]
QUICK = Deadlines(first_token_s=10, gap_s=10, request_s=30, drain_s=30, worker_s=30)
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def chunk(payload: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def event(tokens: int, finish: object = None, **fields: object) -> bytes:
    """The data of one cumulative /generate event."""
    meta = {"finish_reason": finish, "prompt_tokens": 3, "completion_tokens": tokens, "cached_tokens": 0}
    body = {"text": "é" * tokens, "output_ids": list(range(tokens)), "meta_info": {**meta, **fields}}
    return b"data: " + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def stream(tokens: int, **fields: object) -> bytes:
    """A whole, good response of one token an event."""
    events = [event(n) for n in range(1, tokens)]
    events.append(event(tokens, {"type": "length", "length": tokens}, **fields))
    return HEAD + b"".join(map(chunk, events)) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Scripted:
    """A server that answers request number i with ``script(i)``: parts sent in turn, a number is a pause
    in seconds, ``None`` closes the connection, ``...`` waits until the peer goes away, a function is called.
    GET requests are answered with ``info``, or with the parts ``questions``, and not counted.

    Attributes:
        requests: that came.
        waiting: answers of which all was sent up to a ``...``.
    """

    def __init__(self, script: Callable[[int], list[object]]) -> None:
        self._script = script
        self.info = b'{"model_path":"/models/m"}'
        self.questions: list[object] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.requests: list[bytes] = []
        self.connections = 0
        self.waiting = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            while (request := self._request(peer)) is not None:
                if request.startswith(b"GET"):
                    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self.info)
                    if not self._play(peer, self.questions or [head + self.info]):
                        return
                    continue
                with self._lock:
                    number = len(self.requests)
                    self.requests.append(request)
                if not self._play(peer, self._script(number)):
                    return
        except OSError:
            pass
        finally:
            peer.close()

    @property
    def unread_bytes(self) -> int:
        """What was sent and the clients have not read yet, summed over their sockets."""
        found = 0
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, _, remote, state, queues, *_ = line.split()
            if state == "01" and int(remote.rpartition(":")[2], 16) == self._port:
                found += int(queues.rpartition(":")[2], 16)
        return found

    def was_read(self, answers: int) -> bool:
        """Whether so many answers stand at a ``...``, and all that was sent of them is read."""
        return self.waiting == answers and not self.unread_bytes

    def _play(self, peer: socket.socket, parts: list[object]) -> bool:
        """Whether the connection stays open."""
        for part in parts:
            if part is None:
                return False
            if part is ...:
                with self._lock:
                    self.waiting += 1
                peer.recv(1)
                return False
            if isinstance(part, bytes):
                peer.sendall(part)
            elif callable(part):
                part()
            else:
                assert isinstance(part, (int, float))
                time.sleep(part)
        return True

    @staticmethod
    def _request(peer: socket.socket) -> bytes | None:
        data = b""
        while b"\r\n\r\n" not in data:
            more = peer.recv(65536)
            if not more:
                return None
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line for line in head.split(b"\r\n") if line.startswith(b"Content-Length")]
        length = int(lengths[0].split()[1]) if lengths else 0
        while len(body) < length:
            body += peer.recv(65536)
        return head + b"\r\n\r\n" + body

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closed twice
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self._open:
            peer.close()
        self._thread.join(5)


def workload(requests: int = 1, concurrency: int = 1, output_tokens: int = 8, **more: object) -> Workload:
    """A small workload of 3-token prompts."""
    more.setdefault("prompts", Prompts(length_tokens=3))
    return Workload("test", concurrency, requests, output_tokens, **more)  # type: ignore[arg-type]


def compiler(wanted_for: str) -> str:
    """The C compiler; without one the test is skipped, and fails where ``TOKGATE_REQUIRE_COMPILER`` is set."""
    found = shutil.which("cc")
    if found is not None:
        return found
    said = f"no C compiler: {wanted_for}"
    if os.environ.get("TOKGATE_REQUIRE_COMPILER"):
        pytest.fail(said)
    pytest.skip(said)
