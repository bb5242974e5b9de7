"""Cuts a stream of bytes into a log's lines: any encoding, any cut, colours, overwritten progress bars."""

from __future__ import annotations

import codecs
import re

MAX_LINE_BYTES = 1 << 20

ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class LineCutter:
    """Bytes in, lines out, without ends and colours; what a carriage return overwrites is a line too.

    A line is complete when its newline has come, so the lines do not depend on how the bytes were cut. A
    line longer than :data:`MAX_LINE_BYTES` is cut there, which bounds the memory.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._head: bytes | None = b""
        self._decoder: codecs.IncrementalDecoder | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing waits for its newline."""
        return not self._pending and not self._head

    def feed(self, data: bytes) -> list[bytes]:
        """Lines that ``data`` completes."""
        data = self._normal(data)
        if not data:
            return []
        lines = (self._pending + data if self._pending else data).split(b"\n")
        self._pending = lines.pop()
        if len(self._pending) > MAX_LINE_BYTES or any(len(line) > MAX_LINE_BYTES for line in lines):
            lines = [piece for line in lines for piece in _pieces(line)]
            *whole, self._pending = _pieces(self._pending)
            lines += whole
        if b"\r" in data or b"\x1b" in data or any(b"\r" in line or b"\x1b" in line for line in lines[:1]):
            return [part for line in lines for part in _parts(line)]
        return lines

    def close(self) -> list[bytes]:
        """The unfinished last line, if there is one."""
        lines: list[bytes] = []
        if self._head:
            held, self._head = self._head, None
            lines = self.feed(held)
        tail, self._pending = self._pending, b""
        return lines + (list(_parts(tail)) if tail else [])

    def _normal(self, data: bytes) -> bytes:
        """UTF-8 without byte order mark; the encoding is decided by the first bytes."""
        if self._head is not None:
            data = self._head + data
            if len(data) < 3 and any(bom.startswith(data) for bom, _ in _BOMS):
                self._head = data
                return b""
            self._head = None
            for bom, name in _BOMS:
                if data.startswith(bom):
                    self._decoder = codecs.getincrementaldecoder(name)("replace")
                    break
        if self._decoder is not None:
            return self._decoder.decode(data).encode("utf-8", "replace")
        return data


def _pieces(line: bytes) -> list[bytes]:
    return [line[at : at + MAX_LINE_BYTES] for at in range(0, len(line), MAX_LINE_BYTES)] or [b""]


def _parts(line: bytes) -> list[bytes]:
    if b"\x1b" in line:
        line = ANSI.sub(b"", line)
    if b"\r" not in line:
        return [line]
    return (line[:-1] if line.endswith(b"\r") else line).split(b"\r")
