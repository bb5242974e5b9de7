"""The few HTTP requests that the supervisor itself makes of a server."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from dataclasses import dataclass
from socket import SHUT_RDWR, socket
from typing import Any

FIRST_TOKENS = 8


def get_json(host: str, port: int, path: str, timeout_s: float) -> dict[str, Any] | None:
    """A JSON object by GET; ``None`` when there is no such answer."""
    status, body = get(host, port, path, timeout_s)
    return _object(body) if status == 200 else None


def get_info(host: str, port: int, name: str, timeout_s: float) -> dict[str, Any]:
    """``/server_info`` or ``/model_info``, under its older name where a server does not know the newer.

    Empty when there is no such answer.
    """
    status, body = get(host, port, f"/{name}", timeout_s)
    if status in {404, 405}:
        status, body = get(host, port, f"/get_{name}", timeout_s)
    return (_object(body) if status == 200 else None) or {}


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(body)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def get(host: str, port: int, path: str, timeout_s: float) -> tuple[int | None, bytes]:
    """Status and body by GET; status ``None`` when there is no answer in time."""
    return _ask("GET", host, port, path, timeout_s)


def post(host: str, port: int, path: str, timeout_s: float) -> tuple[int | None, bytes]:
    """Status and body by an empty POST; status ``None`` when there is no answer in time."""
    return _ask("POST", host, port, path, timeout_s)


def _ask(method: str, host: str, port: int, path: str, timeout_s: float) -> tuple[int | None, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return None, b""
    finally:
        connection.close()


@dataclass(slots=True)
class FirstGeneration:
    """How the first real generation stands.

    Attributes:
        chunks: events that came.
        tokens: completion tokens, as the server counted in its last event.
        fault: why it ended without the right answer; empty while it runs or when it is right.
    """

    chunks: int = 0
    tokens: int | None = None
    finished: bool = False
    fault: str = ""
    refused: bool = False


class FirstRequest:
    """A short greedy generation in a thread of its own: what shows that a server is ready.

    Args:
        tokens: how many tokens are asked; end-of-sequence is ignored, so exactly so many must come.
    """

    def __init__(self, host: str, port: int, tokens: int = FIRST_TOKENS) -> None:
        self.state = FirstGeneration()
        self.asked = tokens
        self._connection = http.client.HTTPConnection(host, port, timeout=3600)
        # Kept beside the connection, which lets go of it when the server announces that it will close.
        self._socket: socket | None = None
        self._thread = threading.Thread(target=self._run, name="tokgate-first-request", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give up: end the connection, so that the thread ends too."""
        if self._socket is not None:
            # The reading thread is in recv: only shutting down wakes it.
            with contextlib.suppress(OSError):
                self._socket.shutdown(SHUT_RDWR)
        self._thread.join(1.0)
        self._connection.close()

    def _run(self) -> None:
        try:
            self._ask()
        except (OSError, http.client.HTTPException) as error:
            self.state.refused = isinstance(error, ConnectionRefusedError)
            self.state.fault = f"the connection ended: {type(error).__name__}: {error}"
        except ValueError as error:
            self.state.fault = f"the answer is not what SGLang sends: {error}"
        self.state.finished = True

    def _ask(self) -> None:
        body = json.dumps(
            {
                "input_ids": [1, 2, 3, 4],
                "sampling_params": {"max_new_tokens": self.asked, "temperature": 0, "ignore_eos": True},
                "stream": True,
            }
        )
        self._connection.connect()
        self._socket = self._connection.sock
        self._connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        if answer.status != 200:
            text = answer.read(2000).decode(errors="replace").strip()
            self.state.fault = f"/generate answered {answer.status}: {text[:300]}"
            return
        ended = False
        while line := answer.readline():
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                ended = True
                continue
            event = json.loads(data)
            if not isinstance(event, dict) or "error" in event:
                self.state.fault = f"/generate sent an error: {str(event)[:300]}"
                return
            self.state.chunks += 1
            count = event.get("meta_info", {}).get("completion_tokens")
            self.state.tokens = count if isinstance(count, int) else self.state.tokens
        if not ended:
            self.state.fault = (
                f"the stream ended early, after {self.state.tokens or 0} of {self.asked} tokens"
            )
        elif self.state.tokens != self.asked:
            self.state.fault = f"it gave {self.state.tokens} tokens, {self.asked} were asked"
