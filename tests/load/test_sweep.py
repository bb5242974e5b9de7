"""The compiled sweep and connections: which request an event is of, ends, strangers, signals."""

from __future__ import annotations

import select
import signal
import socket

import pytest

from tests.load.peers import HEAD, chunk, event
from tokgate.load.compiled import CompiledReader, Ring
from tokgate.load.connection import READABLE, Stream
from tokgate.load.record import Line, Record

FIRST, PLAIN = HEAD + chunk(event(1)), chunk(event(2))


class Watched:
    """A connection that a compiled reader watches, and its other end."""

    def __init__(self, reader: CompiledReader, poller: select.epoll, hang_up: int) -> None:
        self.server, self.client = socket.socketpair()
        self.client.setblocking(False)
        poller.register(self.client.fileno(), READABLE | select.EPOLLET | hang_up)
        self.stream = Stream(reader.on_align)
        self.stream.adopt(self.client)
        self.record = Record(0, 3, 1)
        self.record.line = Line(1)
        self.stream.begin(self.record, memoryview(b""), 1)


@pytest.fixture
def watched(compiled_sweep):
    poller = select.epoll()
    reader = CompiledReader(compiled_sweep, poller, False, room=64)
    lines: list[Watched] = []

    def new(hang_up: int = select.EPOLLRDHUP) -> Watched:
        lines.append(Watched(reader, poller, hang_up))
        return lines[-1]

    yield reader, new
    poller.close()
    for line in lines:
        line.stream.close()
        line.server.close()


def sweep(reader: CompiledReader, *lines: Watched) -> list[tuple[int, int]]:
    """(descriptor, size) of all that was handed over in one sweep; Python then takes it."""
    handed = []
    streams = {line.stream.fd: line.stream for line in lines}

    def rest(fd, mask, stream, size, control, now) -> None:
        handed.append((fd, size))
        if stream is not None and size < 0:
            size = stream.sock.recv_into(reader.buffer)
        if stream is not None and size:
            reader.take(stream, size, control, now or 1)

    reader.sweep(1, streams, rest)
    return handed


def test_a_descriptor_that_is_used_again_is_another_request(watched) -> None:
    reader, new = watched
    old = new()
    for data in (FIRST, PLAIN):
        old.server.send(data)
        sweep(reader, old)
    assert old.stream.aligned
    old.stream.close()  # in mid-stream, as at a deadline
    fresh = new()
    assert fresh.stream.fd == (fd := fresh.client.fileno())
    fresh.server.send(PLAIN)  # would be plain on the old one
    assert sweep(reader, fresh) == [(fd, -1)]
    reader.log.settle()
    assert (len(old.record.users), len(fresh.record.users)) == (2, 0)
    assert fresh.stream.response.fault


def test_streams_do_not_mix(watched) -> None:
    reader, new = watched
    lines = [new() for _ in range(3)]
    for number in range(1, 6):
        for line in lines:
            line.server.send(
                (HEAD if number == 1 else b"") + chunk(event(number + 10 * line.client.fileno()))
            )
        handed = sweep(reader, *lines)
        assert len(handed) == (3 if number == 1 else 0)
    reader.catch_up(line.stream for line in lines)
    reader.log.settle()
    for line in lines:
        base = 10 * line.client.fileno()
        assert list(line.record.counters) == [-1, *(base + n for n in range(2, 6))]
        assert line.record.last_ns == line.record.users[-1]


def test_a_first_event_that_leaves_the_log_part_by_part_is_one_event(watched, monkeypatch) -> None:
    reader, new = watched
    line = new()
    text = "x" * 1000
    first = chunk(
        b'data: {"text":"%s","meta_info":{"completion_tokens":1,"finish_reason":null}}\n\n' % text.encode()
    )
    for data in (HEAD, first, PLAIN):
        line.server.send(data)
        assert sweep(reader, line) == ([(line.client.fileno(), -1)] if data == HEAD else [])
    assert reader.log.count == 3  # of the head, too, there is an entry
    reader.log.shrink()
    monkeypatch.setattr("tokgate.load.record.BULK", 0)
    monkeypatch.setattr("tokgate.load.record.SHRINK_STEP", 1)
    calls = 0
    while not line.record.users:
        reader.log.shrink()
        calls += 1
    assert calls == 1 + 6 and text.encode() in line.record.whole[0]
    reader.log.settle()
    assert list(line.record.counters) == [-1, 2] and line.record.line.offset == sum(
        map(len, (HEAD, first, PLAIN))
    )


@pytest.mark.parametrize(("lines", "size"), [(3, 100), (20, 60_000)])
def test_what_waits_for_python_waits_apart(watched, lines: int, size: int) -> None:
    """Reads of one pass that are not plain; twenty of 60 kB are more than there is room for at once."""
    reader, new = watched
    found = [new() for _ in range(lines)]
    payloads = [
        b'data: {"error":"%s%d",\ndata: "a":1}\n\n' % (b"x" * size, number) for number in range(lines)
    ]
    for line in found:
        line.server.send(FIRST)
    sweep(reader, *found)
    for line, payload in zip(found, payloads, strict=True):
        line.server.send(chunk(payload))
    handed = sweep(reader, *found)
    assert [size for _, size in handed] == [len(chunk(payload)) for payload in payloads]
    reader.log.settle()
    for number, line in enumerate(found):
        assert b"x%d" % number in line.record.whole[1] and len(line.record.users) == 2


def test_an_end_that_waits_behind_the_stop_of_all_is_nobodys(watched) -> None:
    """Python drops every connection at the first of two; of the second it is told with no stream."""
    reader, new = watched
    first, second = new(), new()
    streams = {line.stream.fd: line.stream for line in (first, second)}
    for line in (first, second):
        line.server.send(FIRST)
        sweep(reader, line)
    for line in (first, second):
        line.server.send(b"0\r\n\r\n")
    told = []

    def rest(fd, mask, stream, size, control, now) -> None:
        told.append((fd, stream is not None, size))
        for gone in list(streams.values()):
            gone.close()
        streams.clear()

    numbers = [line.client.fileno() for line in (first, second)]
    reader.sweep(1, streams, rest)
    assert told == [(numbers[0], True, 5), (numbers[1], False, 5)]


def test_the_end_of_a_connection_is_handed_over(watched) -> None:
    reader, new = watched
    line = new()
    line.server.send(FIRST)
    sweep(reader, line)
    line.server.send(PLAIN)
    line.server.close()
    assert sweep(reader, line) == [(line.client.fileno(), -1)]  # RDHUP: nothing is read before Python


def test_an_end_without_notice_is_handed_over(watched) -> None:
    reader, new = watched
    line = new(hang_up=0)
    line.server.send(FIRST)
    sweep(reader, line)
    line.server.shutdown(socket.SHUT_WR)
    assert sweep(reader, line) == [(line.client.fileno(), 0)]


def test_a_stranger_is_handed_over(watched) -> None:
    reader, new = watched
    line = new()
    line.server.send(PLAIN)
    assert sweep(reader) == [(line.client.fileno(), -1)]


def test_a_signal_ends_the_wait_and_loses_nothing(watched) -> None:
    reader, new = watched
    line, rung = new(), []
    line.server.send(FIRST)
    sweep(reader, line)
    before = signal.signal(signal.SIGALRM, lambda *_: (rung.append(1), line.server.send(PLAIN)))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert sweep(reader, line) == [] and rung
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert sweep(reader, line) == []
    reader.log.settle()
    assert len(line.record.users) == 2


def test_a_closed_poller_is_an_error(compiled_sweep) -> None:
    poller = select.epoll()
    reader = CompiledReader(compiled_sweep, poller, False)
    poller.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.sweep(0, {}, lambda *_: None)
    assert isinstance(reader.log, Ring) and reader.log.count == 0
