"""From packets to dates: when did a byte of a connection arrive?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from tokgate.load.tap import FROM_SERVER, OPENS

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Packets:
    """What a tap saw, in the order of arrival.

    Attributes:
        local: the client's port.
        flags: FROM_SERVER, OPENS.
        sequence: TCP sequence number of the first byte.
        length: bytes carried.
        stamp_ns: CLOCK_REALTIME.
    """

    local: NDArray[np.uint16]
    flags: NDArray[np.uint8]
    sequence: NDArray[np.uint32]
    length: NDArray[np.uint32]
    stamp_ns: Ints

    @classmethod
    def read(cls, file: BinaryIO, count: int) -> Packets:
        """Read what :meth:`tokgate.load.tap.Tap.write` wrote."""
        return cls(
            np.fromfile(file, np.uint16, count),
            np.fromfile(file, np.uint8, count),
            np.fromfile(file, np.uint32, count),
            np.fromfile(file, np.uint32, count),
            np.fromfile(file, np.int64, count),
        )


@dataclass(frozen=True, slots=True)
class Way:
    """One direction of one connection: ``ends`` ascending offsets, ``since_ns`` when all bytes before had come."""

    ends: Ints
    since_ns: Ints

    def complete_ns(self, offsets: Ints) -> Ints:
        """When the byte before each offset had arrived; 0 where it was not seen."""
        return self._at(np.searchsorted(self.ends, offsets, side="left"))

    def begun_ns(self, offsets: Ints) -> Ints:
        """When the byte at each offset passed; 0 where it was not seen."""
        return self._at(np.searchsorted(self.ends, offsets, side="right"))

    def _at(self, places: NDArray[np.intp]) -> Ints:
        return np.append(self.since_ns, 0)[places]


_NOTHING = Way(np.zeros(0, np.int64), np.zeros(0, np.int64))


def ways(packets: Packets, ports: Sequence[int]) -> list[tuple[Way, Way]]:
    """Per connection, in the order of opening: (what the server sent, what the client sent).

    Args:
        packets: of a tap that was there before the connections.
        ports: the local port of each connection. A port that comes again is a later connection.
    """
    order = np.argsort(packets.local, kind="stable")
    local = packets.local[order]
    seen: dict[int, int] = defaultdict(int)
    found = []
    for port in ports:
        chosen = order[np.searchsorted(local, port, "left") : np.searchsorted(local, port, "right")]
        server = packets.flags[chosen] & FROM_SERVER != 0
        number = seen[port]
        seen[port] += 1
        found.append((_way(packets, chosen[server], number), _way(packets, chosen[~server], number)))
    return found


def _way(packets: Packets, chosen: NDArray[np.intp], number: int) -> Way:
    """The ``number``-th connection among packets of one port and direction."""
    opens = np.flatnonzero(packets.flags[chosen] & OPENS)
    numbers = packets.sequence[chosen[opens]]
    opens = np.append(opens[:1], opens[1:][numbers[1:] != numbers[:-1]])  # a repeated SYN opens nothing new
    if number >= len(opens):
        return _NOTHING
    stop = opens[number + 1] if number + 1 < len(opens) else len(chosen)
    first = packets.sequence[chosen[opens[number]]]
    mine = chosen[opens[number] : stop]
    mine = mine[packets.length[mine] > 0]
    if not len(mine):
        return _NOTHING
    # Sequence numbers wrap at 2 ** 32: add up their steps, each taken the short way round.
    steps = np.diff(packets.sequence[mine], prepend=first).astype(np.uint32).view(np.int32).astype(np.int64)
    starts = np.cumsum(steps) - 1
    _, kept = np.unique(starts, return_index=True)  # of a repeated segment the first; ascending
    ends = starts[kept] + packets.length[mine][kept]
    return Way(ends, np.maximum.accumulate(packets.stamp_ns[mine][kept]))
