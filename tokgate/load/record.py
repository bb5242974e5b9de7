"""What the worker keeps while it measures: one entry an event, sorted out afterwards.

Standard library only. While the clock runs an event is appended to one log, whatever stream it is of: its
record, times, and the last ``TAIL`` bytes, which hold the server's token counter. Events that are not in the
middle of a stream (the first, the last, errors) are kept whole. Nothing is parsed as JSON while the clock runs.
"""

from __future__ import annotations

import re
from array import array
from collections import deque

TAIL = 192
NO_STAMP = bytes(16)
# An event that carries this is neither the last nor an error. Inside a JSON string the quote would be
# escaped, so that text cannot imitate it.
MIDDLE = b'"finish_reason":null'
COUNTER = b'"completion_tokens":'
NO_COUNTER = -1
BULK = 200_000  # entries of the log: about 80 MB
SHRINK_STEP = 200  # entries a pass: about 0.2 ms
_DIGITS = re.compile(rb"\s*(\d{1,9})(?:[,}\s]|\Z)")


class Whole(bytes):
    """An event that is kept whole."""

    __slots__ = ()


class Line:
    """One connection from open to close.

    Attributes:
        port: the local port.
        requested: bytes of the requests put on it so far.
        offset: bytes of the entries that were handed over so far.
    """

    __slots__ = ("offset", "port", "requested")

    def __init__(self, port: int) -> None:
        self.port = port
        self.requested = self.offset = 0


class Record:
    """One request, as it happened.

    Attributes:
        index: position in the prompts.
        asked: output tokens asked for.
        intended_ns, sent_ns, ended_ns: CLOCK_MONOTONIC; 0 where it never came to that.
        last_ns: CLOCK_REALTIME after the read of its last event so far; 0 before the first.
        stamps: per event, the kernel's ``struct timespec`` (CLOCK_REALTIME), zeros when it gave none.
        users: per event, CLOCK_REALTIME after the read, ns. Events of one read share it.
        counters: per event, the token counter in its tail, -1 where there is none.
        kept: tails by position, while no two counters were found: what they bear is all that is known.
        whole: events kept whole, by position.
        ends: per event, where on its connection it ended, bytes from the start.
        line: the connection that it was sent on last; ``None`` before.
        requested_at: bytes of earlier requests on that connection.
        outcome, detail: set when it failed in transport; empty while all went well.
        stall_phase, waited_s, limit_s: for outcome ``stalled``.
        reconnects: times that an idle kept-alive connection had been closed by the server.

    The lists by event are filled by :class:`Log`.
    """

    __slots__ = (
        "asked",
        "counted",
        "counters",
        "detail",
        "ended_ns",
        "ends",
        "index",
        "intended_ns",
        "kept",
        "last_ns",
        "limit_s",
        "line",
        "outcome",
        "reconnects",
        "requested_at",
        "sent_ns",
        "stall_phase",
        "stamps",
        "users",
        "waited_s",
        "whole",
    )

    def __init__(self, index: int, asked: int, intended_ns: int) -> None:
        self.index = index
        self.asked = asked
        self.intended_ns = intended_ns
        self.sent_ns = 0
        self.ended_ns = 0
        self.last_ns = 0
        self.stamps = bytearray()
        self.users = array("q")
        self.counters = array("i")
        self.counted = 0
        self.kept: dict[int, bytes] = {}
        self.whole: dict[int, bytes] = {}
        self.ends = array("q")
        self.line: Line | None = None
        self.requested_at = 0
        self.outcome = ""
        self.detail = ""
        self.stall_phase = ""
        self.waited_s = 0.0
        self.limit_s = 0.0
        self.reconnects = 0

    def take(self, user_ns: int, stamp: bytes, kept: bytes | None, size: int) -> None:
        """Take over one entry of the log."""
        if self.line is not None:
            self.line.offset += size
        if kept is None:
            return
        self.ends.append(self.line.offset if self.line is not None else 0)
        position = len(self.users)
        self.users.append(user_ns)
        self.stamps += stamp
        if type(kept) is Whole:
            self.whole[position] = kept
            self.counters.append(NO_COUNTER)
            return
        at = kept.rfind(COUNTER)
        match = _DIGITS.match(kept, at + len(COUNTER)) if at >= 0 else None
        self.counters.append(int(match[1]) if match else NO_COUNTER)
        self.counted += match is not None
        if match is None or self.counted == 1:
            self.kept[position] = kept
        elif self.counted == 2:
            self.kept.clear()

    def fail(self, outcome: str, detail: str) -> None:
        """Set the outcome, unless one stands already."""
        if not self.outcome:
            self.outcome = outcome
            self.detail = detail[:400]

    def stall(self, phase: str, waited_s: float, limit_s: float) -> None:
        """The deadline of ``phase`` passed."""
        self.fail("stalled", f"{phase}: nothing for {waited_s:.1f} s (limit {limit_s:g} s)")
        self.stall_phase, self.waited_s, self.limit_s = phase, waited_s, limit_s


# Record; CLOCK_REALTIME after the read; the kernel's stamp; tail or Whole, None for bytes that end no event; bytes of
# the connection from the entry before to the end of this.
Entry = tuple[Record, int, bytes, bytes | None, int]


class Log:
    """All events in the order of reading. In a long run the oldest are handed to their records a few at a time,
    which keep far less of them, so that memory stays bounded.

    Attributes:
        append: adds an entry.
    """

    __slots__ = ("_entries", "_settled", "append")

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._settled = 0
        self.append = self._entries.append

    @property
    def count(self) -> int:
        """Events so far."""
        return self._settled + len(self._entries)

    def shrink(self) -> None:
        """One step, if more than ``BULK`` entries are held; to be called once a pass of the loop."""
        if len(self._entries) > BULK:
            self._hand_over(SHRINK_STEP)

    def settle(self) -> None:
        """Hand all events to their records."""
        self._hand_over(len(self._entries))

    def _hand_over(self, count: int) -> None:
        pop = self._entries.popleft
        for _ in range(count):
            record, user_ns, stamp, kept, size = pop()
            record.take(user_ns, stamp, kept, size)
        self._settled += count
