"""The event loop of the measuring worker: sending, reading, deadlines. Standard library only."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tokgate.load import clock
from tokgate.load.connection import CONTROL, READ_SIZE, READABLE, Stream
from tokgate.load.limits import Limits
from tokgate.load.pool import Pool
from tokgate.load.reader import Control, Reader
from tokgate.load.record import Line, Record

TICK_NS = 50_000_000
BEAT_NS = 250_000_000
# A client that has caught up with many streams waits a little for the next of their events: to be woken for each
# costs more than to read it. Kernel stamps date arrival meanwhile. For c streams it waits c * 2 us.
LINGER_S, LINGER_STREAM_S, LINGER_LEAST_S = 250e-6, 2e-6, 100e-6
_IN, _OUT = READABLE, select.EPOLLOUT
_STDIN = 0


class Aborted(Exception):
    """The client closed the pipe: stop at once."""


class Loop:
    """Sends a plan of requests and records what comes back.

    Args:
        job: as written by the client: ``address``, ``slots`` (closed loop; 0 for open loop), ``plan``
            (list of [prompt index, offset_ns, start, stop, tokens asked] in the order of sending),
            ``deadlines``, ``keep_output_ids``.
        data: the requests' bytes; a plan entry's start and stop cut its request out of it.
        reader: makes the reader, given the epoll that wakes the loop.
        lingers: may wait a little before it reads, since the kernel stamps what arrives.
        on_tick: called about 20 times a second.

    Attributes:
        records: one per request of the plan.
        clocks: samples of (CLOCK_MONOTONIC ns, CLOCK_REALTIME ns - CLOCK_MONOTONIC ns).
    """

    def __init__(
        self,
        job: dict[str, Any],
        data: memoryview,
        reader: Callable[[select.epoll], Reader],
        *,
        lingers: bool = True,
        on_tick: Callable[[], None] | None = None,
    ) -> None:
        self._slots: int = job["slots"]
        self._plan: deque[list[int]] = deque(job["plan"])
        self._limits = Limits.of(job["deadlines"])
        self._epoll = select.epoll()
        self._reader = reader(self._epoll)
        self._log = self._reader.log
        address = job["address"]
        self._pool = Pool((address[0], tuple(address[1])), self._epoll, self._reader.on_align)
        self._data = data
        self._lingers = lingers
        self._on_tick = on_tick
        self._active = 0
        self._done = self._failed = 0
        self._start_ns = 0
        self._drain_from_ns = 0
        self._next_beat_ns = 0
        self.records: list[Record] = []
        self.clocks: list[tuple[int, int]] = []

    @property
    def lines(self) -> list[Line]:
        """Connections in the order of opening."""
        return self._pool.lines

    def connect(self) -> None:
        """Open the connections before the clock starts: one per slot, or a reserve for open loop."""
        self._pool.reserve(self._slots or min(64, len(self._plan)), within_s=5)
        self._epoll.register(_STDIN, _IN)

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()
        self._epoll.close()

    def run(self, start_ns: int) -> None:
        """Send the plan from ``start_ns`` (CLOCK_MONOTONIC) on and read until all is answered.

        Raises:
            Aborted: the client closed the pipe.
        """
        self._start_ns = start_ns
        sweep, streams, rest = self._reader.sweep, self._pool.streams, self._rest
        self.clocks.append(clock.sample())
        next_tick = 0
        self._dispatch()
        while self._active or self._plan:
            ready = sweep(self._wait(), streams, rest)
            if self._lingers and ready * 4 < self._active and (self._slots or not self._plan):
                linger_s = min(LINGER_S, self._active * LINGER_STREAM_S)
                if linger_s >= LINGER_LEAST_S:
                    time.sleep(linger_s)
            if time.monotonic_ns() >= next_tick:
                next_tick = time.monotonic_ns() + TICK_NS
                self._tick()
            self._dispatch()
            self._log.shrink()
        self.clocks.append(clock.sample())

    def _rest(self, fd: int, mask: int, stream: Stream | None, size: int, control: Control, now: int) -> None:
        """What is no plain event: see :data:`tokgate.load.reader.Rest`."""
        if stream is None:
            if fd == _STDIN:
                self._told(os.read(_STDIN, 64))
            return
        if mask & _OUT:
            self._writable(stream)
            if mask == _OUT:
                return
        sock = stream.sock
        while sock is not None and stream.sock is sock:
            if size < 0:
                try:
                    size, control, _, _ = stream.recv([self._reader.buffer], CONTROL)  # type: ignore[misc]
                except BlockingIOError:
                    return
                except OSError as error:
                    self._closed(stream, error.strerror or str(error))
                    return
                now = time.time_ns()
            if not size:
                self._closed(stream, "")
            elif stream.record is None:  # bytes that nobody asked for: the connection is out of step
                self._pool.drop(stream)
            elif self._reader.take(stream, size, control, now):
                self._finish(stream)
                self._dispatch()
            if mask == _IN and size < READ_SIZE:
                return  # that was all; with the end in sight (RDHUP) read on to it
            size = -1

    def _wait(self) -> float:
        """How long to wait for the next read, seconds; precise when a request is due soon."""
        if not self._plan or (self._slots and not self._pool.free):
            return 0.05
        due_s = (self._start_ns + self._plan[0][1] - time.monotonic_ns()) / 1e9
        if due_s > 0.05:
            return 0.05
        if due_s > 0:
            # epoll counts in whole milliseconds; select on the epoll itself in microseconds.
            select.select([self._epoll], [], [], due_s)
        return 0

    def _dispatch(self) -> None:
        """Send what is due."""
        while self._plan:
            if self._slots and not self._pool.free:
                return
            now = time.monotonic_ns()
            index, offset, start, stop, asked = self._plan[0]
            due = self._start_ns + offset
            if due > now:
                return
            self._plan.popleft()
            stream = self._pool.take()
            record = Record(index, asked, due)
            self.records.append(record)
            self._active += 1
            stream.begin(record, self._data[start:stop], now)
            self._send(stream)
        if not self._drain_from_ns:
            self._drain_from_ns = time.monotonic_ns()

    def _send(self, stream: Stream) -> None:
        record = stream.record
        assert record is not None
        if not record.sent_ns:
            record.sent_ns = time.monotonic_ns()
            if self._slots:  # closed loop: due when it is sent
                record.intended_ns = record.sent_ns
        try:
            if stream.sock is None:
                self._pool.open(stream)
                stream.unsent = stream.request
            line = stream.line
            assert line is not None
            record.line, record.requested_at = line, line.requested
            line.requested += len(stream.request)
            self._pool.send(stream)
        except OSError as error:
            self._closed(stream, error.strerror or str(error))

    def _writable(self, stream: Stream) -> None:
        try:
            self._pool.flush(stream)
        except OSError as error:
            self._closed(stream, error.strerror or str(error))

    def _closed(self, stream: Stream, why: str) -> None:
        """The connection is gone."""
        record, reused = stream.record, stream.served > 0
        refused = stream.connecting or stream.sock is None
        self._pool.drop(stream)
        if record is None:
            return
        if reused and not stream.response.begun and not record.reconnects:
            # An idle keep-alive connection that the server had closed: the request never reached it.
            record.reconnects = 1
            stream.begin(record, stream.request, time.monotonic_ns())
            self._send(stream)
            return
        stream.response.eof()
        if refused:
            record.fail("refused", why or "connection refused")
        elif not stream.response.finished and stream.response.status in (0, 200):
            record.fail("early_close", why or "the server closed the connection inside the response")
        self._finish(stream)

    def _finish(self, stream: Stream) -> None:
        """The request is over: judge the response, free the connection, send what waits."""
        record, response = stream.record, stream.response
        if record is None:
            return
        record.ended_ns = time.monotonic_ns()
        body = bytes(response.body[:300]).decode("utf-8", "replace")
        if response.fault:
            record.fail("malformed", response.fault)
        elif response.status >= 400:
            record.fail("http_4xx" if response.status < 500 else "http_5xx", f"{response.status}: {body}")
        elif response.status and not response.events:
            record.fail("malformed", f"status {response.status} without an event stream: {body}")
        stream.record = None
        stream.align(False)
        stream.served += 1
        self._active -= 1
        self._done += 1
        self._failed += bool(record.outcome)
        if stream.sock is not None and not response.keep_alive:
            self._pool.drop(stream)
        self._pool.give_back(stream)

    def _tick(self) -> None:
        """Deadlines, the clock sample of each second, the beat."""
        now = time.monotonic_ns()
        if now - self.clocks[-1][0] >= 1_000_000_000:
            self.clocks.append(clock.sample())
        if self._on_tick is not None:
            self._on_tick()
        if now >= self._next_beat_ns:
            self._next_beat_ns = now + BEAT_NS
            self.beat()
        busy = self._busy()
        self._reader.catch_up(busy)
        for stream in busy:
            overdue = self._limits.overdue(stream, now, self._drain_from_ns)
            if overdue is not None:
                self._stall(stream, *overdue)

    def _stall(self, stream: Stream, phase: str, waited_ns: int, limit_ns: int) -> None:
        """A deadline passed: end this request, send no more; those in flight keep their deadlines."""
        assert stream.record is not None
        stream.record.stall(phase, waited_ns / 1e9, limit_ns / 1e9)
        self._send_no_more("an earlier request stalled")
        self._pool.drop(stream)
        self._finish(stream)

    def _told(self, word: bytes) -> None:
        """The client says stop, or is gone: end every request as it stands."""
        if not word:
            raise Aborted
        self._send_no_more("the run was ended")
        for stream in self._busy():
            assert stream.record is not None
            stream.record.fail("interrupted", "the run was ended")
            self._pool.drop(stream)
            self._finish(stream)

    def _send_no_more(self, why: str) -> None:
        for index, _, _, _, asked in self._plan:
            self.records.append(Record(index, asked, 0))
            self.records[-1].fail("unsent", why)
        self._plan.clear()

    def _busy(self) -> list[Stream]:
        return [stream for stream in self._pool.streams.values() if stream.record is not None]

    def beat(self) -> None:
        """Tell the client that this process lives, and how far it is."""
        os.write(1, b"beat %d %d %d\n" % (self._done, self._failed, self._log.count))

    def settle(self) -> None:
        """After the run: hand the events to their records."""
        self._log.settle()
