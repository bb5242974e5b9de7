"""The compiled reader keeps what Python's keeps, field by field, and hands over what is not plain."""

from __future__ import annotations

import select
import signal
import socket
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.client.fuzz import Play, fields, judged, tails_agree
from tests.load.damaged import at_chunks, cut, responses
from tests.load.peers import HEAD, chunk, event, stream
from tests.load.test_wire import EXAMPLES, SAMPLES
from tokgate.load.compiled import CompiledReader, Ring
from tokgate.load.connection import READABLE, Stream
from tokgate.load.record import Line, Record

FIRST = HEAD + chunk(event(1))


def both(library, plays: list[list[bytes]], ids: bool = False, room: int = 4096) -> list[list[int]]:
    """Play these responses, one after the other, to both readers, which must keep the same; the sizes of the reads
    that the compiled one handed over, for each."""
    handed = []
    with Play(ids) as python, Play(ids) as slow, Play(ids, library, room) as compiled:
        for pieces in plays:
            ours, theirs = compiled.record(pieces), python.record(pieces)
            assert fields(ours[0]) == fields(theirs[0])
            assert tails_agree(ours[0], theirs[0])
            assert judged(*ours, ids) == judged(*theirs, ids)
            with mock.patch(
                "tokgate.load.reader.MAX_SHAPES", 0
            ):  # Python's slow way, which keeps the same tails
                parsed = slow.record(pieces)
            assert (fields(ours[0]), ours[0].kept) == (fields(parsed[0]), parsed[0].kept)
            handed.append(list(compiled.looked))
    return handed


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(responses(), min_size=1, max_size=3), st.lists(st.integers(0, 5000), max_size=20), st.booleans()
)
def test_both_readers_keep_the_same(compiled_sweep, responses, places, ids) -> None:
    plays = [pieces for data in responses for pieces in ([data], cut(data, places), at_chunks(data))]
    both(compiled_sweep, plays if not ids else plays[:1], ids)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_both_readers_keep_the_same_of_real_bytes(compiled_sweep, path: Path) -> None:
    data = path.read_bytes()
    plays = [[data[i : i + size] for i in range(0, len(data), size)] for size in (1, 7, 356, 1000)]
    handed = both(compiled_sweep, [at_chunks(data), *plays])
    assert len(handed[0]) < len(at_chunks(data)) / 2  # most are plain


@pytest.mark.parametrize("size", [0xFF, 0x100, 0xFFF, 0x1000, 0xFFE0])
def test_every_size_of_chunk_is_plain_at_once(compiled_sweep, size: int) -> None:
    """Around the sizes whose length takes another digit; none was seen before."""
    plain = [chunk(padded(number)) for number in range(size - 20, size + 8)]
    (handed,) = both(compiled_sweep, [[FIRST, *plain]])
    assert handed == [len(FIRST)]


def padded(size: int) -> bytes:
    """An event in the middle of exactly this size."""
    frame = b'data: {"text":"%s","meta_info":{"finish_reason":null,"completion_tokens":2}}\n\n'
    return frame % (b"x" * (size - len(frame) + 2))


PLAIN = chunk(event(2))
ODD = {
    "size in capitals": b"%X\r\n%s\r\n" % (0xAB, padded(0xAB)),
    "size with zeros before it": b"000" + PLAIN,
    "size with an extension": PLAIN.replace(b"\r\n", b";a=b\r\n", 1),
    "size one too small": b"%x\r\n%s\r\n" % (len(event(2)) - 1, event(2)),
    "size one too large": b"%x\r\n%s\r\n" % (len(event(2)) + 1, event(2)),
    "no space behind the colon": chunk(event(2).replace(b"data: ", b"data:")),
    "a comment before it": chunk(b": ping\n" + event(2)),
    "two lines of data": chunk(b'data: {"finish_reason":null,\ndata: "a":1}\n\n'),
    "another field behind it": chunk(event(2)[:-1] + b"id: 1\n\n"),
    "not an object": chunk(b'data: ["finish_reason":null]\n\n'),
    "no object's end": chunk(b'data: {"finish_reason":null,"completion_tokens":2]\n\n'),
    "no empty line": chunk(b'data: {"finish_reason":null,"completion_tokens":2}\nx'),
    "no chunk's end": chunk(b'data: {"finish_reason":null,"completion_tokens":2}\n\n')[:-2] + b"x\n",
    "a finish reason": chunk(event(2, {"type": "length"})),
    "a finish reason far from the end": chunk(
        b'data: {"finish_reason":null,"text":"%s","completion_tokens":2}\n\n' % (b"x" * 2000)
    ),
    "an error": chunk(b'data: {"error":{"message":"out of memory"}}\n\n'),
    "[DONE]": chunk(b"data: [DONE]\n\n"),
    "two events in one chunk": chunk(event(2) + event(3)),
    "half an event": PLAIN[:60],
    "half a chunk's end": PLAIN[:-1],
    "the smallest": chunk(b"data: {}\n\n"),
    "a line": b"\n",
    "a chunk of the size of the buffer": chunk(padded(65536 - 8)),
    "more than the buffer": chunk(padded(70_000)),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_not_plain_is_handed_over(compiled_sweep, name: str) -> None:
    odd = ODD[name]
    (handed,) = both(compiled_sweep, [[FIRST, PLAIN, odd, chunk(event(4)), chunk(event(5))]])
    assert handed[:2] == [len(FIRST), len(odd[:65536])]
    (control,) = both(compiled_sweep, [[FIRST, PLAIN, chunk(event(3)), chunk(event(4)), chunk(event(5))]])
    assert control == [len(FIRST)]


@pytest.mark.parametrize("name", ODD)
def test_what_is_not_plain_is_handed_over_from_where_it_begins(compiled_sweep, name: str) -> None:
    odd = ODD[name][:60_000]
    read = PLAIN + chunk(event(3)) + odd
    (handed,) = both(compiled_sweep, [[FIRST, read, chunk(event(4)), chunk(event(5))]])
    assert handed[:2] == [len(FIRST), len(odd)]


def test_plain_events_in_one_read_are_kept_at_once(compiled_sweep) -> None:
    """As a client finds them that was held up."""
    several = b"".join(chunk(event(number)) for number in range(2, 9))
    end = chunk(event(9, {"type": "length"})) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    handed = both(compiled_sweep, [[FIRST, several, end], [FIRST, several + end], [FIRST + several, end]])
    assert handed == [[len(FIRST), len(end)], [len(FIRST), len(end)], [len(FIRST + several), len(end)]]


def test_a_split_character_and_what_follows_it(compiled_sweep) -> None:
    at = PLAIN.index("é".encode()) + 1
    (handed,) = both(compiled_sweep, [[FIRST, PLAIN[:at], PLAIN[at:], chunk(event(3)), chunk(event(4))]])
    assert handed == [len(FIRST), at, len(PLAIN) - at]  # then it is in step again


@pytest.mark.parametrize("text", [b"a", b"a" * 300])
def test_tails_stay_whole_where_the_server_does_not_count(compiled_sweep, text: bytes) -> None:
    silent = chunk(b'data: {"choices":[{"text":"%s","finish_reason":null}]}\n\n' % text)
    (handed,) = both(compiled_sweep, [[HEAD + silent, *[silent] * 4]])
    assert handed == [len(HEAD + silent)]


@pytest.mark.parametrize("room", [1, 2, 7])
def test_a_full_log_loses_nothing(compiled_sweep, room: int) -> None:
    both(compiled_sweep, [at_chunks(stream(30)), at_chunks(stream(9))], room=room)


def test_a_long_run_holds_a_bounded_number_of_entries(compiled_sweep, monkeypatch) -> None:
    monkeypatch.setattr("tokgate.load.record.BULK", 100)
    monkeypatch.setattr("tokgate.load.record.SHRINK_STEP", 2)
    with select.epoll() as poller:
        log = CompiledReader(compiled_sweep, poller, False, room=4096).log
        record, tail = Record(0, 8, 1), b'"finish_reason":null,"completion_tokens":%d'
        for number in range(1, 401):
            log.append((record, number, bytes(16), tail % number, 9))
            if number % 5 == 0:  # passes bring more than a step
                log.shrink()
    assert log.count == 400 and 290 <= len(record.users) <= 305
    log.settle()
    assert list(record.users) == list(record.counters) == list(range(1, 401))


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
