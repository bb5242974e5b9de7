"""The reader whose sweep is compiled (``sweep.c``): what is plain is kept there, all else goes Python's way afterwards.

Standard library only. The log is a ring of memory that both sides write, in the order of reading.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import socket
from collections.abc import Iterable, Mapping
from struct import Struct

from tokgate.load import record as sizes
from tokgate.load.connection import READ_SIZE, SO_TIMESTAMPNS, Stream
from tokgate.load.library import Unavailable
from tokgate.load.reader import Control, Reader, Rest
from tokgate.load.record import TAIL, Entry, Log, Record, Whole

SLOTS = 65_536  # a connection with a higher descriptor is read by Python
EVENTS = 1024
ASIDE = 1 << 20  # bytes of reads that wait for Python
ROOM = 1 << 18  # entries of the log: 61 MB, touched as they are used
_ENTRY = Struct(f"=q16siii{TAIL}si")  # user clock, stamp, owner, size, bytes kept, tail, part
_LOOK = Struct("=qqqqqq16s")  # descriptor, mask, size, user clock, whether stamped, from, stamp
_LAST_PART = 2
_OWNER, _LAST_NS, _FIRST, _SLOT = 0, 1, 3, 4  # places in a slot, and their number
_EVENT_BYTES = 16  # at most, on any machine


class _State(ctypes.Structure):
    """``struct sweep``."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("poller", "buffer", "buffer_size", "read_size", "looks", "look_room", "slots", "slot_count"),
            *("events", "event_count", "log", "room", "written", "taken", "parts"),
            *("ready", "at", "look_count", "used"),
        )
    )


class Ring(Log):
    """The log as a ring that the compiled sweep writes too. What Python appends has an empty entry there, so that
    the order is kept.

    Args:
        state: shared with the sweep.
        room: entries.
    """

    __slots__ = ("_at_last_shrink", "_memory", "_numbers", "_owners", "_room", "_state", "_view", "_whole")

    def __init__(self, state: _State, room: int = ROOM) -> None:
        super().__init__()
        self._state, self._room = state, room
        self._memory = mmap.mmap(-1, room * _ENTRY.size)
        self._view = memoryview(self._memory)
        state.log, state.room = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)), room
        self._owners: list[Record | None] = [None]
        self._numbers: dict[Record, int] = {}
        self._at_last_shrink = 0
        self._whole = b""  # of an event that is kept whole, the parts so far
        self.append = self._append

    @property
    def count(self) -> int:
        return int(self._state.written - self._state.parts)

    def number(self, record: Record) -> int:
        """The number under which the sweep knows a record, above 0."""
        number = self._numbers.get(record)
        if number is None:
            number = self._numbers[record] = len(self._owners)
            self._owners.append(record)
        return number

    def shrink(self) -> None:
        written = self._state.written
        if written - self._state.taken > sizes.BULK:
            # A pass may bring more than a step.
            self._hand_over(max(sizes.SHRINK_STEP, written - self._at_last_shrink))
        self._at_last_shrink = written

    def settle(self) -> None:
        self._hand_over(self._state.written - self._state.taken)

    def _append(self, entry: Entry) -> None:
        state = self._state
        if state.written - state.taken >= self._room:
            self._hand_over(min(sizes.SHRINK_STEP, self._room))
        at = state.written % self._room * _ENTRY.size
        _ENTRY.pack_into(self._memory, at, 0, b"", 0, 0, 0, b"", 0)
        self._entries.append(entry)
        state.written += 1

    def _hand_over(self, count: int) -> None:
        owners, pop, state = self._owners, self._entries.popleft, self._state
        while count:
            at = state.taken % self._room
            step = min(count, self._room - at)
            part = self._view[at * _ENTRY.size : (at + step) * _ENTRY.size]
            for user_ns, stamp, number, size, kept, tail, of_whole in _ENTRY.iter_unpack(part):
                owner = owners[number]
                if owner is not None and of_whole:
                    self._whole += tail[:kept]
                    if of_whole == _LAST_PART:
                        owner.take(user_ns, stamp, Whole(self._whole), size)
                        self._whole = b""
                elif owner is not None:
                    owner.take(user_ns, stamp, tail[:kept], size)
                else:
                    record, user_ns, stamp, whole, size = pop()
                    record.take(user_ns, stamp, whole, size)
            state.taken += step
            count -= step


class CompiledReader(Reader):
    """A reader that leaves plain events to the library.

    Args:
        library: from :func:`tokgate.load.library.loaded`.
        poller: watches the connections.
        keep_output_ids: see :class:`tokgate.load.reader.Reader`.
        room: entries of the log.

    Raises:
        Unavailable: the library was compiled to another layout.
    """

    __slots__ = (
        *("_aside", "_events", "_go_on", "_looks", "_memory", "_pointer", "_slots", "_state", "_sweep"),
        "log",
    )

    log: Ring

    def __init__(
        self, library: ctypes.CDLL, poller: select.epoll, keep_output_ids: bool, room: int = ROOM
    ) -> None:
        layout = library.tokgate_layout
        layout.restype = ctypes.c_int64
        if layout() != ctypes.sizeof(_State) << 30 | _ENTRY.size << 20 | _LOOK.size << 10 | 8 * _SLOT:
            raise Unavailable("its layout is another one on this machine")
        self._state = state = _State(poller=poller.fileno(), slot_count=SLOTS, event_count=EVENTS)
        super().__init__(poller, Ring(state, room), keep_output_ids)
        self._events = (ctypes.c_char * (EVENTS * _EVENT_BYTES))()
        # Not a ctypes array: that would be filled with zeros at once, memory mapped is as it is used.
        self._memory = mmap.mmap(-1, SLOTS * _SLOT * 8)
        self._slots = memoryview(self._memory).cast("q")
        self._aside, self._looks = bytearray(ASIDE), bytearray(EVENTS * _LOOK.size)
        state.buffer_size, state.read_size, state.look_room = ASIDE, READ_SIZE, EVENTS
        state.buffer = ctypes.addressof(ctypes.c_char.from_buffer(self._aside))
        state.looks = ctypes.addressof(ctypes.c_char.from_buffer(self._looks))
        state.events = ctypes.addressof(self._events)
        state.slots = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._pointer = ctypes.addressof(state)
        self._sweep, self._go_on = library.tokgate_sweep, library.tokgate_go_on
        self._sweep.argtypes, self._go_on.argtypes = [ctypes.c_void_p, ctypes.c_int], [ctypes.c_void_p]
        self.on_align = self._aligned

    def sweep(self, wait_s: float, streams: Mapping[int, Stream], rest: Rest) -> int:
        """As :meth:`Reader.sweep`."""
        state, pointer, aside, buffer = self._state, self._pointer, self._aside, self.buffer
        why = self._sweep(pointer, int(wait_s * 1e3))
        while why:
            if why < 0:
                raise OSError(-why, os.strerror(-why))
            looks = self._looks[: state.look_count * _LOOK.size]
            for fd, mask, size, now_ns, stamped, start, stamp in _LOOK.iter_unpack(looks):
                control = [(socket.SOL_SOCKET, SO_TIMESTAMPNS, stamp)] if stamped else []
                if size > 0:
                    buffer[:size] = aside[start : start + size]
                rest(fd, mask, streams.get(fd), size, control, now_ns)
            why = self._go_on(pointer)
        return int(state.ready)

    def catch_up(self, streams: Iterable[Stream]) -> None:
        """Bring the records' ``last_ns`` up to date with what was kept since."""
        for stream in streams:
            if stream.record is not None and 0 <= stream.fd < SLOTS:
                last_ns = self._slots[stream.fd * _SLOT + _LAST_NS]
                stream.record.last_ns = max(stream.record.last_ns, last_ns)

    def take(self, stream: Stream, size: int, control: Control, now: int) -> bool:
        """As :meth:`Reader.take`."""
        self.catch_up((stream,))
        return super().take(stream, size, control, now)

    def _align(self, stream: Stream, aligned: bool) -> None:
        super()._align(stream, aligned)
        record = stream.record
        if record is None or record.last_ns or self._keep_whole or not 0 <= stream.fd < SLOTS:
            return
        if stream.response.aligned:  # its head is read: of many streams the first events come at once
            at = stream.fd * _SLOT
            self._slots[at + _OWNER] = self.log.number(record)
            self._slots[at + _FIRST] = 1

    def _aligned(self, stream: Stream) -> None:
        """Tell the sweep whose the next plain event of this connection is."""
        if not 0 <= stream.fd < SLOTS:
            return
        self.catch_up((stream,))
        at = stream.fd * _SLOT
        record = stream.record if stream.aligned else None
        self._slots[at + _OWNER] = self.log.number(record) if record is not None else 0
        self._slots[at + _LAST_NS] = self._slots[at + _FIRST] = 0
