"""What the worker does with the bytes of one read. Standard library only.

A read that is exactly one event in the middle of a stream (nearly all are) is recognised by its shape, at the
cost of one unpacking and one search; any other goes through :class:`tokgate.load.wire.Response`. Both keep
the same: how reads are cut changes times, never facts.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import Any

from tokgate.load.connection import CONTROL, READ_SIZE, READABLE, SHIFT, Stream, is_cumulative, stamp_of
from tokgate.load.record import COUNTER, MIDDLE, NO_STAMP, TAIL, Log, Whole
from tokgate.load.wire import chunk_size

END = b"}\n\n\r\n"  # of an event that is an object, and of its chunk
MAX_SHAPES = 20_000
_NEVER = bytes(READ_SIZE + 1)  # longer than the buffer, so that it never begins with it
_CR = 13
Control = list[tuple[int, int, bytes]]
# Called as ``rest(fd, mask, stream, size, control, now)`` for everything but an event in the middle: with the
# read in the buffer, or with size -1 when nothing was read.
Rest = Callable[[int, int, Stream | None, int, Control, int], None]
# Unpacks a read into its first bytes, the mark of the middle, what is kept, and its last bytes.
Unpack = Callable[[bytearray], tuple[Any, ...]]


class Reader:
    """The receive buffer and what is done with it.

    Args:
        poller: watches the connections.
        log: receives the events.
        keep_output_ids: keep token ids. A server that sends only new ids has all its events kept whole, one
            that repeats them (SGLang from 0.5.6) only the last; which it is shows at the first second event.

    Attributes:
        buffer: where a read is put, from its start.
        log: the events.
        on_align: what its streams call, see :class:`tokgate.load.connection.Stream`.
    """

    __slots__ = (
        *("_find", "_heads", "_keep_whole", "_mark", "_poll", "_shapes", "_view"),
        *("buffer", "log", "on_align"),
    )

    def __init__(self, poller: select.epoll, log: Log, keep_output_ids: bool) -> None:
        self.buffer = bytearray(READ_SIZE)
        self.log = log
        self.on_align: Callable[[Stream], None] | None = None
        self._poll = poller.poll
        self._view = memoryview(self.buffer)
        self._find = self.buffer.find
        self._heads: dict[int, bytes] = {}
        self._shapes: dict[int, tuple[Unpack, bytes]] = {}
        self._mark = -1  # of the event learned last
        self._keep_whole = keep_output_ids

    def sweep(self, wait_s: float, streams: Mapping[int, Stream], rest: Rest) -> int:
        """Read once from each connection that is ready. This is the hot path: nearly every read ends here.

        Args:
            wait_s: how long to wait for one, seconds.
            streams: by descriptor.
            rest: takes what is no plain event.

        Returns:
            How many were ready.
        """
        ready = self._poll(wait_s)
        buffer, find, buffers, control_size = self.buffer, self._find, [self.buffer], CONTROL
        shape_of, append, clock, stream_of = self._shapes.get, self.log.append, time.time_ns, streams.get
        middle_mark, end_mark, no_stamp, readable = MIDDLE, END, NO_STAMP, READABLE
        for fd, mask in ready:
            stream = stream_of(fd)
            if mask != readable or stream is None:
                rest(fd, mask, stream, -1, [], 0)
                continue
            try:
                size, control, _, _ = stream.recv(buffers, control_size)  # type: ignore[misc]
            except OSError:  # it comes again there, or nothing is left to read
                rest(fd, mask, stream, -1, [], 0)
                continue
            now = clock()
            shape = shape_of(size + stream.shift)
            if shape is not None:
                head, middle, kept, end = shape[0](buffer)
                if (
                    head == shape[1]
                    and middle == middle_mark
                    and end == end_mark
                    and find(b"\n", 6, size) == size - 4
                ):
                    record = stream.record
                    record.last_ns = now  # type: ignore[union-attr]
                    append((record, now, control[0][2] if control else no_stamp, kept, size))  # type: ignore[arg-type]
                    continue
            rest(fd, mask, stream, size, control, now)
        return len(ready)

    def catch_up(self, streams: Iterable[Stream]) -> None:
        """Bring the records' ``last_ns`` up to date; here they always are."""

    def take(self, stream: Stream, size: int, control: Control, now: int) -> bool:
        """Take ``size`` bytes of the buffer, read for ``stream``.

        Args:
            stream: with a record.
            size: above 0.
            control: the read's control messages.
            now: CLOCK_REALTIME after the read, ns.

        Returns:
            Whether the response is over.
        """
        record, response, at, stamp = stream.record, stream.response, 0, stamp_of(control)
        assert record is not None
        logged = 0  # bytes of this read that are accounted for in the log
        while at < size and not response.finished:
            if stream.aligned or (response.aligned and not self._keep_whole):
                if logged < at:
                    self.log.append((record, now, stamp, None, at - logged))
                at = logged = self._several(stream, at, size, stamp, now)
                if not stream.aligned and record.last_ns:
                    self._align(stream, True)
                if at == size:
                    return False
            stop = min(size, at + response.ahead) if response.ahead else size
            for payload, end in zip(response.feed(bytes(self._view[at:stop])), response.ends, strict=True):
                whole = not record.last_ns or self._keep_whole or MIDDLE not in payload
                record.last_ns = now
                kept = Whole(payload) if whole else payload[-TAIL - 1 : -1]
                self.log.append((record, now, stamp, kept, at + end - logged))
                logged = at + end
                if self._keep_whole:
                    self._is_new_only(stream, payload)
            at = stop
            self._align(stream, response.aligned and record.last_ns > 0 and not self._keep_whole)
            if stream.aligned and logged < at:
                self.log.append((record, now, stamp, None, at - logged))
                logged = at
        if logged < size:
            self.log.append((record, now, stamp, None, size - logged))
        return response.finished

    def _align(self, stream: Stream, aligned: bool) -> None:
        stream.align(aligned)
        if aligned and not stream.learned:
            stream.learn(self._mark)  # streams of one server are alike

    def _is_new_only(self, stream: Stream, payload: bytes) -> None:
        """At the second event of a stream: need all events be kept whole?"""
        if stream.opening is None:
            stream.opening = payload
        elif stream.opening:
            self._keep_whole = not is_cumulative(stream.opening, payload)
            stream.opening = b""

    def _several(self, stream: Stream, start: int, size: int, stamp: bytes, now: int) -> int:
        """Keep the events that follow each other from ``start`` on, a chunk each; return where they end.

        A client that was held up finds many in one read, and must not fall further behind by parsing them; and all
        streams may begin or end at once. An event in the middle that fills its read teaches its shape.
        """
        record, buffer = stream.record, self.buffer
        assert record is not None
        while start < size:
            at = self._find(b"\n", start, start + 10) - 1
            length = chunk_size(bytes(self._view[start:at])) if at > start and buffer[at] == _CR else None
            end = at + 4 + (length or 0)
            if (
                not length
                or end > size
                or not buffer.startswith(b"data: ", at + 2)
                or not buffer.endswith(b"\n\n\r\n", at, end)
                or self._find(b"\n", at + 2, end) != end - 4
                or buffer[end - 5] == _CR
            ):
                return start
            middle = buffer.rfind(MIDDLE, at, end)
            if middle < 0 or not record.last_ns:
                kept: bytes = Whole(self._view[at + 8 : end - 4])
            elif buffer.startswith(b"{", at + 8) and buffer.endswith(END, at, end):
                if start == 0 and end == size:
                    self._learn(stream, middle, size)
                kept = bytes(self._view[max(at + 8, end - 5 - TAIL) : end - 5])
            else:
                return start
            record.last_ns = now
            self.log.append((record, now, stamp, kept, end - start))
            start = end
        return start

    def _learn(self, stream: Stream, middle: int, size: int) -> None:
        """From an event that filled its read: what the next ones of its size look like."""
        mark = size - middle
        stream.learn(mark)
        self._mark = mark
        behind = mark - len(MIDDLE) - len(END)
        kept = min(TAIL, behind)
        head = self._heads.get(size) or self._head(size)
        # An event whose counter stands before the mark, or that is all mark, is not worth a shape.
        if (
            len(self._shapes) < MAX_SHAPES
            and self.buffer.startswith(head)
            and len(head) < middle
            and self._find(COUNTER, size - len(END) - kept, size) >= 0
        ):
            gaps = (size - len(head) - mark, behind - kept)
            form = Struct(f"<{len(head)}s{gaps[0]}x{len(MIDDLE)}s{gaps[1]}x{kept}s{len(END)}s")
            self._shapes[size + (mark << SHIFT)] = (form.unpack_from, head)

    def _head(self, size: int) -> bytes:
        """How a read of ``size`` bytes begins that is one chunk with one event."""
        digits = 1
        while digits < 4 and size - 4 - digits >= 16**digits:
            digits += 1
        number = b"%x" % max(0, size - 4 - digits)
        # Not every size is one of a chunk: 16 bytes of data take 22, 15 take 20.
        head = number + b"\r\ndata: {" if len(number) == digits and size > 16 else _NEVER
        self._heads[size] = head
        return head
