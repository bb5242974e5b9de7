"""What the worker does with the bytes of one read. Standard library only.

A read that is exactly one event in the middle of a stream (nearly all are) is kept with a few operations
on bytes; any other goes through :class:`tokgate.load.wire.Response`. Both keep the same: how reads are
cut changes times, never facts.
"""

from __future__ import annotations

from tokgate.load.connection import NO_MARK, READ_SIZE, Stream, is_cumulative, stamp_of
from tokgate.load.record import MIDDLE, NO_STAMP, TAIL

# Longer reads hold TAIL bytes of data behind any head.
_LONG = TAIL + 16
_NEVER = bytes(READ_SIZE + 1)  # longer than the buffer, so that it never begins with it
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
                record.tails += self._view[size - 4 - TAIL : size - 4]  # type: ignore[union-attr]
            else:
                data = bytes(self._view[self._find(b"{") : size - 4])
                record.tails += data[-TAIL:].rjust(TAIL)  # type: ignore[union-attr]
            return False
        return self._parse(stream, bytes(self._view[:size]), control, now)

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

    def _parse(self, stream: Stream, data: bytes, control: Control, now: int) -> bool:
        record, response = stream.record, stream.response
        assert record is not None
        stamp = stamp_of(control)
        for payload in response.feed(data):
            record.add(payload, stamp, now, self._keep_whole)
            if self._keep_whole and len(record.users) == 2:
                self._keep_whole = not is_cumulative(record.whole[0], payload)
        stream.aligned = response.aligned and len(record.users) > 0 and not self._keep_whole
        return response.finished
