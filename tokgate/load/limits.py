"""Deadlines of a run, applied to one request. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from tokgate.load.connection import Stream

# The loop looks at deadlines 20 times a second: twice within the shortest.
LOWEST_S = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """How long nothing may happen, ns: see :class:`tokgate.load.client.Deadlines`."""

    first_ns: int
    gap_ns: int
    request_ns: int
    drain_ns: int

    @classmethod
    def of(cls, deadlines: Mapping[str, float]) -> Self:
        """From seconds by name."""
        names = ("first_token_s", "gap_s", "request_s", "drain_s")
        return cls(*(int(deadlines[name] * 1e9) for name in names))

    def overdue(self, stream: Stream, now_ns: int, drain_from_ns: int) -> tuple[str, int, int] | None:
        """The deadline that the request on ``stream`` has passed.

        Args:
            stream: with a record; what it remembers of its progress is brought up to date.
            now_ns: CLOCK_MONOTONIC.
            drain_from_ns: when the last request was sent, 0 before.

        Returns:
            Phase, time waited and limit, ns; ``None`` while it is within all.
        """
        record = stream.record
        assert record is not None
        if record.last_ns != stream.progress_ns:
            stream.progress_ns, stream.progress_at_ns = record.last_ns, now_ns
        idle, total, drain = now_ns - stream.progress_at_ns, now_ns - record.sent_ns, now_ns - drain_from_ns
        if not record.last_ns and total > self.first_ns:
            return "first token", total, self.first_ns
        if record.last_ns and idle > self.gap_ns:
            return "stream", idle, self.gap_ns
        if total > self.request_ns:
            return "request", total, self.request_ns
        if drain_from_ns and drain > self.drain_ns:
            return "drain", drain, self.drain_ns
        return None
