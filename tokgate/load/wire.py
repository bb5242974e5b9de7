"""One HTTP/1.1 response that carries server-sent events, parsed as its bytes arrive.

Standard library only: the measuring worker imports it. The result depends on the bytes alone, not on
how reads cut them: :meth:`Response.feed` may be given one byte at a time. Sources: RFC 9112 (chunked
coding), the WHATWG event-stream format (lines end in LF or CRLF).
"""

from __future__ import annotations

import re

MAX_HEAD = 64 * 1024
MAX_LINE = 4 * 1024
MAX_EVENT = 64 * 1024 * 1024
MAX_BODY = 64 * 1024

_HEAD, _SIZE, _DATA, _DATA_END, _TRAILER, _LENGTH, _TO_EOF, _COMPLETE, _BROKEN = range(9)
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?=[ \r\n])")
_HEX = re.compile(rb"[0-9A-Fa-f]{1,8}")


def chunk_size(line: bytes) -> int | None:
    """The size that a chunk's size line gives (without its CRLF), ``None`` when it is not one."""
    digits = line.split(b";", 1)[0].strip(b" \t")
    return int(digits, 16) if _HEX.fullmatch(digits) else None


class Response:
    """State of one response.

    Attributes:
        status: HTTP status, 0 until the head has arrived.
        fault: why the bytes are not a response, empty while they are.
        body: the first bytes of a body that is not an event stream (errors), for messages.
        keep_alive: whether the server leaves the connection open.
        events: True when a successful event stream is read.
        ends: for each event that the last call of :meth:`feed` gave, where it ended in the bytes fed.
    """

    __slots__ = (
        "_chunk_left",
        "_data",
        "_event_bytes",
        "_head",
        "_line",
        "_state",
        "body",
        "ends",
        "events",
        "fault",
        "keep_alive",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        self.fault = ""
        self.body = bytearray()
        self.keep_alive = True
        self.events = False
        self.ends: list[int] = []
        self._state = _HEAD
        self._head = bytearray()
        self._chunk_left = 0
        self._line = bytearray()
        self._data: list[bytes] = []
        self._event_bytes = 0

    @property
    def begun(self) -> bool:
        """A byte of it has arrived."""
        return self._state != _HEAD or bool(self._head)

    @property
    def complete(self) -> bool:
        """The whole response has arrived."""
        return self._state == _COMPLETE

    @property
    def finished(self) -> bool:
        """Complete, or broken beyond use: no further byte changes anything."""
        return self._state in (_COMPLETE, _BROKEN)

    @property
    def aligned(self) -> bool:
        """Between two chunks and between two events: the next read may be one whole event."""
        return self._state == _SIZE and self.events and not (self._head or self._line or self._data)

    @property
    def ahead(self) -> int:
        """Bytes up to the end of the chunk that is being read, 0 when none is."""
        return self._chunk_left + 2 if self._state == _DATA else 0

    def feed(self, data: bytes) -> list[bytes]:
        """Take the bytes of one read.

        Returns:
            The data of each event that these bytes completed.
        """
        found: list[bytes] = []
        self.ends = []
        at, end = 0, len(data)
        while at < end and self._state < _COMPLETE:
            if self._state == _DATA or self._state == _LENGTH:
                stop = min(end, at + self._chunk_left)
                self._body(data[at:stop], found, at)
                self._chunk_left -= stop - at
                at = stop
                if not self._chunk_left and self._state < _COMPLETE:
                    self._state = _DATA_END if self._state == _DATA else _COMPLETE
            elif self._state == _TO_EOF:
                self._body(data[at:], found, at)
                at = end
            else:
                at = self._text_line(data, at)
        if self._state == _COMPLETE and (self._line or self._data):
            self._break("the stream ended inside an event")
        return found

    def eof(self) -> None:
        """The server closed the connection."""
        if self._state == _TO_EOF:
            self._state = _COMPLETE
            if self._line or self._data:
                self._break("the stream ended inside an event")

    def _break(self, why: str) -> None:
        self._state = _BROKEN
        self.fault = why
        self.keep_alive = False

    def _text_line(self, data: bytes, at: int) -> int:
        """Collect one line of head, size, chunk end or trailer; return the position after it."""
        newline = data.find(b"\n", at)
        stop = len(data) if newline < 0 else newline + 1
        self._head += data[at:stop]
        if len(self._head) > (MAX_HEAD if self._state == _HEAD else MAX_LINE):
            self._break("header longer than 64 KiB" if self._state == _HEAD else "chunk size line too long")
            return stop
        if self._state == _DATA_END and not self._head.startswith((b"\n", b"\r\n")) and self._head != b"\r":
            self._break("chunk longer than its size")
            return stop
        if newline < 0:
            return stop
        if self._state == _HEAD:
            if self._head.endswith((b"\n\r\n", b"\n\n")):
                head = bytes(self._head)
                self._head.clear()
                self._read_head(head)
            elif self._head.count(b"\n") == 1 and not _STATUS.match(self._head):
                self._break(f"not an HTTP/1.x status line: {bytes(self._head[:80])!r}")
            return stop
        line = bytes(self._head[:-1]).removesuffix(b"\r")
        self._head.clear()
        if self._state == _SIZE:
            size = chunk_size(line)
            if size is None:
                self._break(f"not a chunk size: {line[:40]!r}")
            else:
                self._chunk_left = size
                self._state = _DATA if size else _TRAILER
        elif self._state == _DATA_END:
            self._state = _SIZE
        elif not line:
            self._state = _COMPLETE
        return stop

    def _read_head(self, head: bytes) -> None:
        match = _STATUS.match(head)
        assert match is not None
        self.status = int(match[2])
        fields: dict[bytes, bytes] = {}
        for line in head.split(b"\n")[1:]:
            name, _, value = line.partition(b":")
            fields[name.strip().lower()] = value.strip()
        connection = fields.get(b"connection", b"").lower()
        self.keep_alive = connection != b"close" if match[1] == b"1" else connection == b"keep-alive"
        if 100 <= self.status < 200:
            self.status = 0
            return
        kind = fields.get(b"content-type", b"").lower()
        self.events = self.status == 200 and kind.startswith(b"text/event-stream")
        length = fields.get(b"content-length")
        if fields.get(b"transfer-encoding", b"").lower().endswith(b"chunked"):
            self._state = _SIZE
        elif self.status in (204, 304):
            self._state = _COMPLETE
        elif length is not None:
            if not re.fullmatch(rb"\d{1,15}", length):
                self._break(f"not a Content-Length: {length[:40]!r}")
                return
            self._chunk_left = int(length)
            self._state = _LENGTH if self._chunk_left else _COMPLETE
        else:
            self._state = _TO_EOF
            self.keep_alive = False

    def _body(self, data: bytes, found: list[bytes], base: int) -> None:
        if not self.events:
            self.body += data[: MAX_BODY - len(self.body)]
            return
        at = 0
        while True:
            newline = data.find(b"\n", at)
            if newline < 0:
                self._line += data[at:]
                break
            line = data[at:newline]
            at = newline + 1
            if self._line:
                line = bytes(self._line) + line
                self._line.clear()
            line = line.removesuffix(b"\r")
            if not line:
                if self._data:
                    found.append(b"\n".join(self._data))
                    self.ends.append(base + at)
                    self._data = []
                self._event_bytes = 0
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
                self._event_bytes += len(line)
        if len(self._line) + self._event_bytes > MAX_EVENT:
            self._break("event longer than 64 MiB")
