"""What the worker does with the bytes of one read. Standard library only.

A read that is exactly one event in the middle of a stream (nearly all are) is kept with a few operations
on bytes; any other goes through :class:`tokgate.load.wire.Response`. Both keep the same: how reads are
cut changes times, never facts.
"""

from __future__ import annotations

from tokgate.load.connection import NO_MARK, READ_SIZE, Stream, is_cumulative, stamp_of
from tokgate.load.record import MIDDLE, NO_STAMP, TAIL, Record
from tokgate.load.wire import chunk_size

# Longer reads hold TAIL bytes of data behind any head.
_LONG = TAIL + 16
_NEVER = bytes(READ_SIZE + 1)  # longer than the buffer, so that it never begins with it
_CR = 13
Control = list[tuple[int, int, bytes]]


class Reader:
    """The receive buffer and what is done with it.

    Args:
        keep_output_ids: keep token ids. A server that sends only new ids has all its events kept whole, one
            that repeats them (SGLang from 0.5.6) only the last; which it is shows at the first second event.

    Attributes:
        buffer: where a read is put, from its start.
    """

    __slots__ = ("_ends", "_find", "_heads", "_keep_whole", "_rfind", "_starts", "_view", "buffer")

    def __init__(self, keep_output_ids: bool) -> None:
        self.buffer = bytearray(READ_SIZE)
        self._view = memoryview(self.buffer)
        self._find, self._rfind = self.buffer.find, self.buffer.rfind
        self._starts, self._ends = self.buffer.startswith, self.buffer.endswith
        self._heads: dict[int, bytes] = {}
        self._keep_whole = keep_output_ids

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
        # One chunk that is one event, SIZE CRLF "data: {" ... "}" LF LF CRLF, with the mark of the middle
        # where it was in the event before.
        if (
            stream.aligned
            and self._starts(self._heads.get(size) or self._head(size))
            and self._ends(b"}\n\n\r\n", 0, size)
            and self._find(b"\n", 6, size) == size - 4
            and (
                (size > stream.mark and self._starts(MIDDLE, size - stream.mark))
                or self._middle(stream, size)
            )
        ):
            record = stream.record
            record.stamps += control[0][2] if control else NO_STAMP  # type: ignore[union-attr]
            record.users.append(now)  # type: ignore[union-attr]
            if size >= _LONG:
                record.tails += self.buffer[size - 4 - TAIL : size - 4]  # type: ignore[union-attr]
            else:
                data = self.buffer[self._find(b"{") : size - 4]
                record.tails += data[-TAIL:].rjust(TAIL)  # type: ignore[union-attr]
            return False
        return self._take_rest(stream, size, control, now)

    def _take_rest(self, stream: Stream, size: int, control: Control, now: int) -> bool:
        """A read of another shape: several events, part of one, the first, the last, or no event at all."""
        record, response, at, stamp = stream.record, stream.response, 0, stamp_of(control)
        assert record is not None
        while at < size:
            if stream.aligned:
                at = self._several(record, at, size, stamp, now)
                if at == size:
                    break
            stop = min(size, at + response.ahead) if response.ahead else size
            for payload in response.feed(bytes(self._view[at:stop])):
                record.add(payload, stamp, now, self._keep_whole)
                if self._keep_whole and len(record.users) == 2:
                    self._keep_whole = not is_cumulative(record.whole[0], payload)
            if response.finished:
                return True
            at = stop
            stream.aligned = response.aligned and len(record.users) > 0 and not self._keep_whole
        return False

    def _several(self, record: Record, start: int, size: int, stamp: bytes, now: int) -> int:
        """Keep the events in the middle that follow each other from ``start`` on; return where they end.

        A client that was held up finds many in one read, and must not fall further behind by parsing them.
        """
        while True:
            at = self._find(b"\n", start, start + 10) - 1
            length = (
                chunk_size(bytes(self._view[start:at])) if at > start and self.buffer[at] == _CR else None
            )
            end = at + 4 + (length or 0)
            if (
                not length
                or end > size
                or not self._starts(b"data: {", at + 2)
                or not self._ends(b"}\n\n\r\n", at, end)
                or self._find(b"\n", at + 2, end) != end - 4
                or self._find(MIDDLE, at, end) < 0
            ):
                return start
            record.stamps += stamp
            record.users.append(now)
            record.tails += self.buffer[max(at + 8, end - 4 - TAIL) : end - 4].rjust(TAIL)
            start = end

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

    def _middle(self, stream: Stream, size: int) -> bool:
        """Whether the event bears the mark of the middle, wherever it stands."""
        found = self._rfind(MIDDLE, 0, size)
        stream.mark = size - found if found >= 0 else NO_MARK
        return found >= 0
