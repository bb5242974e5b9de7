"""A server that speaks as much of SGLang's /generate as a replay needs, with faults on request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

Answer = Callable[[list[int], int], list[int]]


def right(prompt: list[int], tokens: int) -> list[int]:
    """Greedy output of an imagined model: the sum of the prompt, counting up."""
    return [(sum(prompt) + i) % 1000 for i in range(tokens)]


def candidates(token: int) -> list[list[object]]:
    second = -0.101 if token % 10 == 9 else -4.0
    return [[-0.1, token, None], [second, token + 5000, None]]


class Handler(BaseHTTPRequestHandler):
    answer: Answer = staticmethod(right)
    broken: bytes | None = None

    def log_message(self, *args: object) -> None:
        return

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.path == "/flush_cache":
            self.reply(b"ok")
            return
        if self.broken is not None:
            self.reply(self.broken)
            return
        asked = json.loads(body)
        prompt, tokens = asked["input_ids"], asked["sampling_params"]["max_new_tokens"]
        ids = type(self).answer(prompt, tokens)
        meta: dict[str, object] = {"finish_reason": {"type": "length", "length": len(ids)}}
        if asked.get("return_logprob"):
            meta["output_top_logprobs"] = [candidates(x) for x in ids]
        if "logprob_start_len" in asked:
            meta["input_top_logprobs"] = [
                None,
                *(candidates(x) for x in prompt[asked["logprob_start_len"] + 1 :]),
            ]
        self.reply(json.dumps({"output_ids": ids, "meta_info": meta}).encode())

    def reply(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Start a server; returns its address."""
    running: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(answer: Answer = right, broken: bytes | None = None) -> str:
        kind = type("Planted", (Handler,), {"answer": staticmethod(answer), "broken": broken})
        server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()
