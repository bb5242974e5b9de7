"""Requests as bytes: SGLang's ``/generate`` and the OpenAI completions and chat routes."""

from __future__ import annotations

import json
import socket
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokgate.config.workloads import Route, Workload
from tokgate.errors import UsageFault
from tokgate.load.prompts import PromptSet

PATHS: Mapping[Route, str] = {
    "generate": "/generate",
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}


@dataclass(frozen=True, slots=True)
class Protocol:
    """How requests are worded.

    Attributes:
        model: model name on the OpenAI routes; SGLang accepts any.
        headers: further header fields, such as ``Authorization``.
        ignore_eos: ask the server to go on past the end-of-sequence token, so that lengths are as asked.
    """

    model: str = "default"
    headers: Mapping[str, str] = field(default_factory=dict)
    ignore_eos: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: host and port as in the URL, path prefix, and the resolved socket address."""

    host: str
    port: int
    prefix: str
    family: int
    address: tuple[Any, ...]

    @property
    def url(self) -> str:
        """The base URL in full, without a trailing slash."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{self.prefix}"


def resolve(url: str) -> Target:
    """Parse and resolve a server's base URL.

    Raises:
        UsageFault: not an http URL, or of a host that does not resolve.
    """
    try:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        port = parts.port or 80
    except ValueError as error:
        raise UsageFault(f"'{url}' is not a server address: {error}; expected http://HOST:PORT") from error
    if parts.scheme == "https":
        raise UsageFault(
            f"'{url}': https is not measured, since the kernel cannot stamp what TLS hides",
            ["measure the server's plain http port, or a local tunnel to it"],
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageFault(
            "the address holds credentials, a query or a fragment; expected http://HOST:PORT, perhaps with a path",
            ["credentials go into a header: --header 'Authorization: ...'"],
        )
    if parts.scheme != "http" or not parts.hostname:
        raise UsageFault(f"'{url}' is not a server address; expected http://HOST:PORT")
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageFault(
            f"host '{parts.hostname}' does not resolve: {why}",
            ["expected the address of a server, http://HOST:PORT"],
        ) from error
    # A server started on 0.0.0.0 does not answer on ::1, which 'localhost' may name first.
    found.sort(key=lambda item: item[0] != socket.AF_INET)
    family, _, _, _, address = found[0]
    return Target(parts.hostname, port, parts.path.rstrip("/"), int(family), address)


def requests(workload: Workload, prompts: PromptSet, target: Target, protocol: Protocol) -> list[bytes]:
    """The HTTP requests of a run, one per prompt, complete with their heads.

    Raises:
        UsageFault: the route cannot carry these prompts.
    """
    if workload.route == "chat" and prompts.texts is None:
        raise UsageFault(
            f"workload '{workload.name}': the chat route takes texts, not token ids",
            ["use prompts of kind 'text', or route 'completions' or 'generate'"],
        )
    host = f"[{target.host}]" if ":" in target.host else target.host
    extra = "".join(f"{name}: {value}\r\n" for name, value in protocol.headers.items())
    if extra.count("\n") != len(protocol.headers):
        raise UsageFault("a header field holds a line break")
    head = (
        f"POST {target.prefix}{PATHS[workload.route]} HTTP/1.1\r\nHost: {host}:{target.port}\r\n"
        f"Content-Type: application/json\r\nAccept: text/event-stream\r\n{extra}Content-Length: "
    )
    found = []
    for i in range(len(prompts)):
        text = json.dumps(_body(workload, prompts, i, protocol), separators=(",", ":")).encode()
        found.append(f"{head}{len(text)}\r\n\r\n".encode() + text)
    return found


def asked(workload: Workload, prompts: PromptSet, index: int) -> int:
    """Output tokens asked of one request."""
    own = prompts.output_tokens[index] if prompts.output_tokens else None
    return own or workload.output_tokens


def _body(workload: Workload, prompts: PromptSet, index: int, protocol: Protocol) -> dict[str, Any]:
    tokens = asked(workload, prompts, index)
    if workload.route == "generate":
        prompt = (
            {"text": prompts.texts[index]} if prompts.texts else {"input_ids": (prompts.ids or ())[index]}
        )
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": protocol.ignore_eos}
        return {**prompt, "sampling_params": sampling, "stream": True}
    body: dict[str, Any] = {
        "model": protocol.model,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if protocol.ignore_eos:
        body["ignore_eos"] = True
    if workload.route == "chat":
        assert prompts.texts is not None
        body["messages"] = [{"role": "user", "content": prompts.texts[index]}]
    else:
        body["prompt"] = prompts.texts[index] if prompts.texts else (prompts.ids or ())[index]
    return body
