"""What the worker does with the bytes of one read. Standard library only.

A read that is exactly one event in the middle of a stream (nearly all are) is kept with a few operations
on bytes; any other goes through :class:`tokgate.load.wire.Response`. Both keep the same: how reads are
cut changes times, never facts.
"""

from __future__ import annotations

from tokgate.load.connection import Stream, is_cumulative, stamp_of
from tokgate.load.record import MIDDLE, NO_STAMP, TAIL
from tokgate.load.wire import chunk_size

Control = list[tuple[int, int, bytes]]


class Reader:
    """The receive buffer and what is done with it.

    Args:
        keep_output_ids: keep token ids. A server that sends only new ids has all its events kept whole, one
            that repeats them (SGLang from 0.5.6) only the last; which it is shows at the first second event.

    Attributes:
        buffer: where a read is put, from its start.
    """

    __slots__ = ("_ends", "_find", "_keep_whole", "_rfind", "_sizes", "_starts", "_view", "buffer")

    def __init__(self, keep_output_ids: bool) -> None:
        self.buffer = bytearray(65536)
        self._view = memoryview(self.buffer)
        self._find, self._rfind = self.buffer.find, self.buffer.rfind
        self._starts, self._ends = self.buffer.startswith, self.buffer.endswith
        self._sizes: dict[bytes, int] = {}
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
        if stream.aligned and self._ends(b"}\n\n\r\n", 0, size):
            # SIZE CRLF "data: {" ... "}" LF LF CRLF and nothing more: one chunk that is one event.
            at = self._find(b"\r\n", 1, 10)
            if at > 0 and self._starts(b"data: {", at + 2) and self._find(b"\n", at + 2, size) == size - 4:
                digits = bytes(self._view[:at])
                length = self._sizes.get(digits)
                if length is None:
                    length = self._sizes[digits] = chunk_size(digits) or 0
                if length + at + 4 == size and self._middle(stream, at + 8, size):
                    record = stream.record
                    record.stamps += control[0][2] if control else NO_STAMP  # type: ignore[union-attr]
                    record.users.append(now)  # type: ignore[union-attr]
                    if size - 4 - TAIL >= at + 8:
                        record.tails += self._view[size - 4 - TAIL : size - 4]  # type: ignore[union-attr]
                    else:
                        record.tails += bytes(self._view[at + 8 : size - 4]).rjust(TAIL)  # type: ignore[union-attr]
                    return False
        return self._parse(stream, bytes(self._view[:size]), control, now)

    def _middle(self, stream: Stream, start: int, size: int) -> bool:
        """Whether the event bears the mark of the middle; it stands where it stood in the event before."""
        if stream.mark and self._starts(MIDDLE, max(start, size - stream.mark)):
            return True
        found = self._rfind(MIDDLE, start, size)
        stream.mark = size - found if found >= 0 else 0
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
