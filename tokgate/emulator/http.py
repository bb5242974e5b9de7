"""A small HTTP/1.1 server on one event loop: keep-alive, chunked streams, timers.

Not a general web server: enough for SGLang's clients, with no import that costs memory or time.
"""

from __future__ import annotations

import heapq
import itertools
import json
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    422: "Unprocessable Entity",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024


class Loop:
    """Readiness callbacks and timers of one thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.stopped = False

    def watch(self, source: Any, events: int, callback: Callable[[int], None]) -> None:
        """Call ``callback(mask)`` whenever ``source`` is ready for ``events``; replaces an earlier watch."""
        known = self._selector.get_map().get(source)
        if known is None:
            self._selector.register(source, events, callback)
        elif known.events != events or known.data != callback:
            self._selector.modify(source, events, callback)

    def forget(self, source: Any) -> None:
        """Stop watching."""
        try:
            self._selector.unregister(source)
        except (KeyError, ValueError):
            return

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call once, later."""
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._order), callback))

    def run(self) -> None:
        """Until ``stopped``."""
        while not self.stopped:
            wait = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            for key, mask in self._selector.select(wait):
                key.data(mask)
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()


class Exchange:
    """One request and its response.

    Attributes:
        method, path: as sent, without the query.
        headers: names in lower case.
        body: bytes.
        on_disconnect: called when the client goes away before the response is complete.
    """

    def __init__(self, connection: Connection, method: str, path: str, headers: dict[str, str], body: bytes):
        self._connection = connection
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.keep_alive = headers.get("connection", "").lower() != "close"
        self.status = 0
        self.done = False
        self._streaming = False
        self.on_disconnect: Callable[[], None] = _nothing

    @property
    def client(self) -> str:
        """``host:port`` of the client."""
        return self._connection.client

    def respond(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """A whole response."""
        extra = f"content-length: {len(body)}\r\ncontent-type: {content_type}\r\n"
        self._finish(status, self._head(status, extra) + body)

    def respond_json(self, status: int, data: Any) -> None:
        """A whole JSON response."""
        self.respond(status, json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode())

    def start_stream(self) -> None:
        """Head of a server-sent-event response; data follows by :meth:`send_event`."""
        self.status = 200
        self._streaming = True
        extra = (
            "content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\nTransfer-Encoding: chunked\r\n"
        )
        self._connection.write(self._head(200, extra))

    def send_event(self, data: str) -> None:
        """One event, one chunk."""
        payload = f"data: {data}\n\n".encode()
        self._connection.write(b"%x\r\n%b\r\n" % (len(payload), payload))

    def end_stream(self) -> None:
        """The terminating event and chunk."""
        self.send_event("[DONE]")
        self._finish(200, b"0\r\n\r\n")

    def abandon(self) -> None:
        """Close the connection in the middle of the response."""
        self.done = True
        self._connection.close()

    def _head(self, status: int, extra: str) -> bytes:
        self._connection.answered(self, status)
        closing = "" if self.keep_alive else "Connection: close\r\n"
        return (
            f"HTTP/1.1 {status} {REASONS[status]}\r\n"
            f"date: {time.strftime('%a, %d %b %Y %H:%M:%S GMT', time.gmtime())}\r\n"
            f"server: uvicorn\r\n{extra}{closing}\r\n"
        ).encode()

    def _finish(self, status: int, data: bytes) -> None:
        self.status = status
        self.done = True
        self._connection.write(data)
        self._connection.finished(self)


def _nothing() -> None:
    return


class Connection:
    """One client connection."""

    def __init__(self, server: Server, sock: socket.socket, address: tuple[str, int]) -> None:
        self._server = server
        self._sock = sock
        self.client = f"{address[0]}:{address[1]}"
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._exchange: Exchange | None = None
        self._closing = False
        self._closed = False
        server.loop.watch(sock, selectors.EVENT_READ, self._ready)

    def write(self, data: bytes) -> None:
        """Send now what the socket takes, the rest later."""
        if self._closed:
            return
        self._outgoing += data
        self._flush()

    def answered(self, exchange: Exchange, status: int) -> None:
        """A response has begun: uvicorn writes its access line here."""
        self._server.answered(exchange, status)

    def finished(self, exchange: Exchange) -> None:
        """The response is complete: take the next request, or close."""
        self._exchange = None
        if not exchange.keep_alive:
            self._closing = True
        if self._closing and not self._outgoing:
            self.close()
        else:
            self._server.loop.after(0, self._parse)

    def close(self) -> None:
        """Close; a response in progress is told."""
        if self._closed:
            return
        self._closed = True
        self._server.loop.forget(self._sock)
        self._server.connections.discard(self)
        self._sock.close()
        exchange, self._exchange = self._exchange, None
        if exchange is not None and not exchange.done:
            exchange.done = True
            exchange.on_disconnect()

    def _ready(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush()
        if mask & selectors.EVENT_READ and not self._closed:
            try:
                data = self._sock.recv(1 << 18)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._incoming += data
            self._parse()

    def _flush(self) -> None:
        while self._outgoing:
            try:
                sent = self._sock.send(self._outgoing)
            except BlockingIOError:
                break
            except OSError:
                self.close()
                return
            del self._outgoing[:sent]
        if self._closing and not self._outgoing:
            self.close()
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        self._server.loop.watch(self._sock, events, self._ready)

    def _parse(self) -> None:
        if self._exchange is not None or self._closed:
            return
        end = self._incoming.find(b"\r\n\r\n")
        if end < 0:
            if len(self._incoming) > MAX_HEAD_BYTES:
                self.close()
            return
        lines = self._incoming[:end].decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        words = lines[0].split()
        length_text = headers.get("content-length", "0")
        if len(words) != 3 or not length_text.isdigit() or int(length_text) > MAX_BODY_BYTES:
            self._closing = True
            self.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
            return
        start, length = end + 4, int(length_text)
        if len(self._incoming) < start + length:
            if headers.pop("expect", "").lower() == "100-continue":
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                head = bytes(self._incoming[:end]).replace(b"100-continue", b"")
                self._incoming[:end] = head
            return
        body = bytes(self._incoming[start : start + length])
        del self._incoming[: start + length]
        self._exchange = Exchange(self, words[0], words[1].partition("?")[0], headers, body)
        if words[2] == "HTTP/1.0":
            self._exchange.keep_alive = False
        self._server.handle(self._exchange)


class Server:
    """Accepts connections and hands every request to ``handle``.

    Args:
        loop: the event loop.
        listener: bound socket.
        handle: called with each whole request; it may answer at once or later.
        answered: called when a response begins.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        handle: Callable[[Exchange], None],
        answered: Callable[[Exchange, int], None],
    ) -> None:
        self.loop = loop
        self.handle = handle
        self.answered = answered
        self.listener = listener
        self.connections: set[Connection] = set()
        listener.listen(512)
        listener.setblocking(False)
        loop.watch(listener, selectors.EVENT_READ, self._accept)

    def _accept(self, mask: int) -> None:
        while True:
            try:
                sock, address = self.listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections.add(Connection(self, sock, address))
