"""Everything that one server said: its answers, its scrapes, its log. Taken live or read from a recording."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.launches import PROFILES
from tokgate.config.profiles import Profile
from tokgate.server.running import Server

NEW_TOKENS = 64
TIMEOUT_S = 180.0
FACTS = "facts.json"


def prompt(length: int, first: int) -> list[int]:
    """Ordinary token ids, the same each time; ``first`` keeps prompts from sharing a prefix."""
    return [259 + (first * 977 + 37 * i) % 7000 for i in range(length)]


PROMPT, STREAMED = prompt(40, 1), prompt(40, 2)
TEXT = "A text prompt."


@dataclass(frozen=True, slots=True)
class Transcript:
    """What one server said.

    Attributes:
        engine: kind of the engine.
        version: of SGLang, as the engine file says.
        profile: what was asked for.
        preset, accept_length: the pair that was served.
        health: status of ``/health``.
        model_info, generated, server_info: answers of ``/model_info``, of a greedy ``/generate`` over
            ``PROMPT``, and of ``/server_info`` after all requests.
        streamed, completion: bodies of a streamed ``/generate`` over ``STREAMED`` and of a streamed
            ``/v1/completions`` over ``TEXT``.
        before, after: scrapes of ``/metrics`` around the requests.
        flush: status of ``/flush_cache`` once idle.
        log: up to that point.
    """

    engine: str
    version: str
    profile: Profile
    preset: str
    accept_length: float
    health: int
    flush: int
    model_info: Any
    generated: Any
    server_info: Any
    streamed: bytes
    completion: bytes
    before: str
    after: str
    log: bytes

    def save(self, folder: Path, places: Sequence[tuple[str, str]]) -> None:
        """Write it as small files; ``places`` are this machine's paths and what stands for them."""
        folder.mkdir(parents=True, exist_ok=True)
        facts = {
            "engine": self.engine,
            "version": self.version,
            "profile": self.profile.name,
            "preset": self.preset,
            "accept_length": self.accept_length,
            "health": self.health,
            "flush": self.flush,
        }
        files: dict[str, str | bytes] = {
            FACTS: _text(facts),
            "model_info.json": _text(self.model_info),
            "generated.json": _text(self.generated),
            "server_info.json": _text(self.server_info),
            "streamed.sse": self.streamed,
            "completion.sse": self.completion,
            "before.prom": _without_comments(self.before),
            "after.prom": _without_comments(self.after),
            "server.log": self.log,
        }
        for name, content in files.items():
            data = content if isinstance(content, bytes) else content.encode()
            for place, stand_in in places:
                data = data.replace(place.encode(), stand_in.encode())
            (folder / name).write_bytes(data)

    @classmethod
    def load(cls, folder: Path) -> Transcript:
        """Read what :meth:`save` wrote."""

        def parsed(name: str) -> Any:
            return json.loads((folder / name).read_text(encoding="utf-8"))

        facts = parsed(FACTS)
        return cls(
            **{**facts, "profile": PROFILES[facts["profile"]]},
            **{name: parsed(f"{name}.json") for name in ("model_info", "generated", "server_info")},
            streamed=(folder / "streamed.sse").read_bytes(),
            completion=(folder / "completion.sse").read_bytes(),
            before=(folder / "before.prom").read_text(encoding="utf-8"),
            after=(folder / "after.prom").read_text(encoding="utf-8"),
            log=(folder / "server.log").read_bytes(),
        )


def take(server: Server, preset: str, accept_length: float) -> Transcript:
    """Question a running server."""
    greedy = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    before = ask(server, "GET", "/metrics")[1].decode()
    generated = generate(server, PROMPT, NEW_TOKENS)
    streamed = ask(
        server, "POST", "/generate", {"input_ids": STREAMED, "sampling_params": greedy, "stream": True}
    )[1]
    completion = ask(
        server,
        "POST",
        "/v1/completions",
        {
            "model": "default",
            "prompt": TEXT,
            "temperature": 0,
            "max_tokens": NEW_TOKENS,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )[1]
    return Transcript(
        engine=server.spec.engine.kind,
        version=server.spec.engine.version,
        profile=server.profile,
        preset=preset,
        accept_length=accept_length,
        model_info=json.loads(ask(server, "GET", "/model_info")[1]),
        generated=generated,
        streamed=streamed,
        completion=completion,
        before=before,
        after=ask(server, "GET", "/metrics")[1].decode(),
        server_info=json.loads(ask(server, "GET", "/server_info")[1]),
        health=ask(server, "GET", "/health")[0],
        flush=ask(server, "POST", "/flush_cache")[0],
        log=server.log_path.read_bytes(),
    )


def generate(server: Server, input_ids: Sequence[int], new_tokens: int) -> dict[str, Any]:
    """A greedy ``/generate``, whole."""
    greedy = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    status, body = ask(server, "POST", "/generate", {"input_ids": list(input_ids), "sampling_params": greedy})
    assert status == 200, body
    answer: dict[str, Any] = json.loads(body)
    return answer


def ask(server: Server, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    """One request: status and body."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=TIMEOUT_S)
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _text(value: object) -> str:
    return json.dumps(value, indent=0) + "\n"


def _without_comments(scrape: str) -> str:
    """SGLang's own series; Python's and the histograms' single buckets are left out."""
    kept = re.compile(r"sglang:(?!.*_bucket\{)")
    return "".join(line for line in scrape.splitlines(keepends=True) if kept.match(line))
