"""Plays bytes to the client's readers, without a server, and says what they keep of them."""

from __future__ import annotations

import ctypes
import select
import socket
import time

from tokgate.load.compiled import CompiledReader
from tokgate.load.connection import READ_SIZE, READABLE, Stream
from tokgate.load.events import digest
from tokgate.load.reader import Control, Reader
from tokgate.load.record import Line, Log, Record
from tokgate.load.wire import Response


class Play:
    """Plays reads to a reader as the worker's loop does, over a pair of sockets.

    Args:
        keep_output_ids: as the worker is asked.
        library: the compiled sweep; ``None`` for Python's.
        room: entries of the compiled sweep's log.

    Attributes:
        looked: sizes of the reads that were not recognised by their shape.
    """

    def __init__(
        self, keep_output_ids: bool = False, library: ctypes.CDLL | None = None, room: int = 4096
    ) -> None:
        self._ids = keep_output_ids
        self._epoll = select.epoll()
        self._server, self._client = socket.socketpair()
        self._client.setblocking(False)
        self._epoll.register(self._client.fileno(), READABLE | select.EPOLLET)
        self._reader = (
            Reader(self._epoll, Log(), keep_output_ids)
            if library is None
            else CompiledReader(library, self._epoll, keep_output_ids, room)
        )
        self._stream = Stream(self._reader.on_align)
        self._stream.adopt(self._client)
        self.looked: list[int] = []

    def close(self) -> None:
        """Close the sockets."""
        self._epoll.close()
        self._client.close()
        self._server.close()

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, pieces: list[bytes]) -> tuple[Record, Response]:
        """What the worker keeps of a response that arrives in these reads. Shapes learned before stay known."""
        stream, record, over = self._stream, Record(0, 3, 1), False
        stream.begin(record, memoryview(b""), 1)
        record.line, consumed = Line(1), 0
        reads = [piece[at : at + READ_SIZE] for piece in pieces for at in range(0, len(piece), READ_SIZE)]
        self.looked.clear()

        def rest(_fd: int, _mask: int, _s: Stream | None, size: int, control: Control, now: int) -> None:
            nonlocal over
            if size < 0:
                size = self._client.recv_into(self._reader.buffer)
                now = time.time_ns()
            self.looked.append(size)
            over = self._reader.take(stream, size, control, now)

        for piece in reads:
            self._server.sendall(piece)
            consumed += len(piece)
            if self._reader.sweep(1, {stream.fd: stream}, rest) != 1:
                raise AssertionError("a read was not seen")
            if over:
                break
        self._reader.catch_up([stream])
        last_ns = record.last_ns
        stream.record = None
        stream.align(False)
        if not over:
            stream.response.eof()
        self._reader.log.settle()
        if record.users and last_ns != record.users[-1]:
            raise AssertionError(f"last event at {record.users[-1]}, remembered as {last_ns}: {pieces!r}")
        if record.line.offset != consumed or sorted(record.ends) != list(record.ends):
            raise AssertionError(f"{consumed} bytes read, {record.line.offset} accounted for: {pieces!r}")
        return record, stream.response

    def kept(self, pieces: list[bytes]) -> tuple[object, ...]:
        """All that is judged later, times apart."""
        return judged(*self.record(pieces), self._ids)


def judged(record: Record, response: Response, ids: bool = False) -> tuple[object, ...]:
    """All of a record that is judged later, times apart: the same however the bytes were cut."""
    return (
        len(record.counters) if ids else list(record.counters),
        None if ids else record.whole,
        digest(record, ids),
        response.fault,
        response.status,
        response.finished,
        bytes(response.body),
    )


def fields(record: Record) -> tuple[object, ...]:
    """Every field that a reader fills, times and tails apart: the same by both readers for the same cuts."""
    return (
        list(record.counters),
        record.counted,
        record.whole,
        list(record.ends),
        len(record.users),
        len(record.stamps),
        sorted(record.kept),
        record.last_ns > 0,
        (record.outcome, record.detail),
    )


def tails_agree(one: Record, other: Record) -> bool:
    """Whether the same tails are kept. Python's quick way keeps less where the finish reason is near the end."""
    pairs = [(one.kept[at], other.kept[at]) for at in one.kept]
    return all(a.endswith(b) or b.endswith(a) for a, b in pairs)
