"""The events of a Chrome trace file, one after the other, in bounded memory.

Traces reach gigabytes once unpacked, so no file is ever held whole: one event at a time is cut out of a
window of text. Plain and gzip, objects with ``traceEvents`` and bare arrays, traces cut off in the middle.
"""

from __future__ import annotations

import codecs
import json
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tokgate.errors import UsageFault

EVENTS = "traceEvents"
_CHUNK = 1 << 20
# No event and no value of the header is longer than this.
_LONGEST = 16 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_GZIP = b"\x1f\x8b"


class _CutOff(Exception):
    """The file ends before the trace does."""


class EventStream:
    """Iterates over a trace's events, each a dictionary as written.

    Attributes:
        header: the other values of the trace (``deviceProperties``, ``distributedInfo``, ...); those that
            stand before the events are there as soon as the first event is, all of them at the end.
        truncated: the file ended in the middle, as a server that died leaves it; known at the end.

    Args:
        path: the file, plain or gzip.

    Raises:
        UsageFault: while iterating, for a file that cannot be read or is no trace.
    """

    def __init__(self, path: Path) -> None:
        self.header: dict[str, Any] = {}
        self.truncated = False
        self._path = path
        self._decoder = json.JSONDecoder(strict=False)
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._buffer = ""
        self._at = 0
        self._ended = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                yield from self._read(_chunks(file))
        except OSError as error:
            raise UsageFault(f"{self._path}: cannot be read: {error.strerror or error}") from error

    def _read(self, chunks: Iterator[bytes]) -> Iterator[dict[str, Any]]:
        self._chunks = chunks
        try:
            first = self._first()
            if first == "[":
                yield from self._events()
            elif first == "{":
                yield from self._object()
            else:
                raise UsageFault(f"{self._path}: not a trace: neither a JSON object nor an array")
        except _CutOff:
            self.truncated = True

    def _first(self) -> str:
        try:
            return self._peek()
        except _CutOff:
            return ""

    def _object(self) -> Iterator[dict[str, Any]]:
        self._at += 1
        found = False
        while self._peek(_BETWEEN) != "}":
            key = self._value()
            if not isinstance(key, str) or self._peek() != ":":
                raise UsageFault(f"{self._path}: not a trace: {str(key)[:40]!r} where a key was expected")
            self._at += 1
            if key == EVENTS and self._peek() == "[":
                found = True
                yield from self._events()
            else:
                self._peek()
                self.header[key] = self._value()
        if not found:
            raise UsageFault(f"{self._path}: not a trace: no '{EVENTS}' in it")

    def _events(self) -> Iterator[dict[str, Any]]:
        self._at += 1
        while self._peek(_BETWEEN) != "]":
            event = self._value()
            if not isinstance(event, dict):
                raise UsageFault(
                    f"{self._path}: not a trace: {str(event)[:40]!r} where an event was expected"
                )
            yield event
        self._at += 1

    def _peek(self, skipped: re.Pattern[str] = _SPACE) -> str:
        """The next character that is not to be skipped, without taking it."""
        while True:
            found = skipped.match(self._buffer, self._at)
            self._at = self._at if found is None else found.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            self._fill()

    def _value(self) -> Any:
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                # Cut by the end of the window, as a rule; what is wrong in itself stays wrong.
                if len(self._buffer) - self._at > _LONGEST:
                    raise UsageFault(f"{self._path}: not JSON: {error.msg}") from error
                self._fill()
                continue
            if end == len(self._buffer) and not isinstance(value, (dict, list, str)) and not self._ended:
                # A number may go on in the next window.
                self._fill()
                continue
            self._at = end
            return value

    def _fill(self) -> None:
        """More text behind what is not yet taken.

        Raises:
            _CutOff: there is none.
        """
        if self._ended:
            raise _CutOff
        chunk = next(self._chunks, b"")
        self._ended = not chunk
        self._buffer = self._buffer[self._at :] + self._text.decode(chunk, final=self._ended)
        self._at = 0


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    """The content piece by piece, unpacked; of a file that is cut off or damaged, what comes before that."""
    packed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    if not packed:
        while chunk := file.read(_CHUNK):
            yield chunk
        return
    unpacker = zlib.decompressobj(wbits=31)
    while data := file.read(max(_CHUNK // 8, 1)):
        more = True
        while more:
            try:
                chunk = unpacker.decompress(data, _CHUNK)
            except zlib.error:
                return
            if chunk:
                yield chunk
            data = unpacker.unconsumed_tail
            more = bool(data) or len(chunk) == _CHUNK
            if unpacker.eof:
                # Several gzip files may stand one behind the other.
                data = unpacker.unused_data
                unpacker = zlib.decompressobj(wbits=31)
                more = bool(data)


def is_trace(path: Path) -> bool:
    """Whether a file begins as a Chrome trace does; a log of SGLang never does.

    False when it cannot be read, and for what is no file: a pipe may never get a writer.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            begin = next(_chunks(file), b"")[:512].lstrip()
    except OSError:
        return False
    return begin[:1] == b"{" or (begin[:1] == b"[" and begin[1:].lstrip()[:1] == b"{")
