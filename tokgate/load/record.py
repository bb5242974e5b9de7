"""What the worker keeps of one request while it is measured: stamps and tails, parsed afterwards.

Standard library only. An event costs 16 + 8 + ``TAIL`` bytes. An event in the middle of a stream is
kept as its last ``TAIL`` bytes, which hold the server's token counter; any other (the first, the last,
errors) is kept whole. Nothing is parsed as JSON while the clock runs.
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
BULK = 300_000  # events whose tails are kept: 65 MB
SHRINK_STEP = 200  # events a pass: about 0.15 ms
_DIGITS = re.compile(rb"\s*(\d{1,9})[,}\s]")


class Record:
    """One request, as it happened.

    Attributes:
        index: position in the prompts.
        asked: output tokens asked for.
        intended_ns, sent_ns, ended_ns: CLOCK_MONOTONIC; 0 where it never came to that.
        stamps: per event, the kernel's ``struct timespec`` (CLOCK_REALTIME), zeros when it gave none.
        users: per event, CLOCK_REALTIME after the read, ns. Events of one read share it.
        tails: per event, ``TAIL`` bytes, right-aligned; given up once all counters are extracted.
        counters: the token counters extracted so far, -1 where an event has none.
        whole: events kept whole, by position.
        outcome, detail: set when it failed in transport; empty while all went well.
        stall_phase, waited_s, limit_s: for outcome ``stalled``.
        reconnects: times that an idle kept-alive connection had been closed by the server.
    """

    __slots__ = (
        "asked",
        "counters",
        "detail",
        "ended_ns",
        "index",
        "intended_ns",
        "limit_s",
        "outcome",
        "reconnects",
        "sent_ns",
        "stall_phase",
        "stamps",
        "tails",
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
        self.stamps = bytearray()
        self.users = array("q")
        self.tails = bytearray()
        self.counters = array("i")
        self.whole: dict[int, bytes] = {}
        self.outcome = ""
        self.detail = ""
        self.stall_phase = ""
        self.waited_s = 0.0
        self.limit_s = 0.0
        self.reconnects = 0

    def add(self, payload: bytes, stamp: bytes, user_ns: int, keep_whole: bool) -> None:
        """Keep one event that did not arrive as exactly one read (the worker's loop keeps those)."""
        position = len(self.users)
        self.stamps += stamp
        self.users.append(user_ns)
        if keep_whole or not position or MIDDLE not in payload:
            self.whole[position] = payload
        self.tails += payload[-TAIL:].rjust(TAIL)

    def extract(self, limit: int) -> bool:
        """Read the counters of up to ``limit`` further events out of their tails.

        Returns:
            Whether all are read.
        """
        counters, tails = self.counters, self.tails
        last = min(len(self.users), len(counters) + limit)
        for position in range(len(counters), last):
            if position in self.whole:
                counters.append(NO_COUNTER)
                continue
            start, end = position * TAIL, (position + 1) * TAIL
            at = tails.rfind(COUNTER, start, end)
            match = _DIGITS.match(tails, at + len(COUNTER), end) if at >= 0 else None
            counters.append(int(match[1]) if match else NO_COUNTER)
        return last == len(self.users)

    def free(self) -> None:
        """Give up the tails, when their counters are all that will be asked of them."""
        if sum(counter != NO_COUNTER for counter in self.counters) > 1:
            self.tails = bytearray()

    def fail(self, outcome: str, detail: str) -> None:
        """Set the outcome, unless one stands already."""
        if not self.outcome:
            self.outcome = outcome
            self.detail = detail[:400]

    def stall(self, phase: str, waited_s: float, limit_s: float) -> None:
        """The deadline of ``phase`` passed."""
        self.fail("stalled", f"{phase}: nothing for {waited_s:.1f} s (limit {limit_s:g} s)")
        self.stall_phase, self.waited_s, self.limit_s = phase, waited_s, limit_s


class Finished:
    """Records of finished requests. In a long run their counters are read out a little at a time, and the
    tails freed, so that memory stays bounded."""

    __slots__ = ("_events", "_records")

    def __init__(self) -> None:
        self._records: deque[Record] = deque()
        self._events = 0

    def add(self, record: Record) -> None:
        """Take in a record whose request is over."""
        self._records.append(record)
        self._events += len(record.users)

    def shrink(self) -> None:
        """One step, if more than ``BULK`` events are held; to be called once a pass of the loop."""
        if self._events <= BULK:
            return
        record = self._records[0]
        if record.extract(SHRINK_STEP):
            self._records.popleft()
            self._events -= len(record.users)
            record.free()
