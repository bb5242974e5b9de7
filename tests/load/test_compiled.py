"""The compiled reader keeps what Python's keeps, field by field, and hands over what is not plain."""

from __future__ import annotations

import select
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.client.play import Play, fields, judged, tails_agree
from tests.load.damaged import at_chunks, cut, responses
from tests.load.peers import HEAD, chunk, event, stream
from tests.load.test_wire import EXAMPLES, SAMPLES
from tokgate.load import library
from tokgate.load.compiled import CompiledReader
from tokgate.load.library import loaded, made
from tokgate.load.record import Record

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
    "two events in one chunk": chunk(event(2) + event(3)),
    "another field": chunk(b"event: stop\n\n"),
    "a carriage return": chunk(b'data: {"a":1}\r\n\n'),
    "half an event": PLAIN[:60],
    "half a chunk's end": PLAIN[:-1],
    "a line": b"\n",
    "a chunk of the size of the buffer": chunk(padded(65536 - 8)),
    "more than the buffer": chunk(padded(70_000)),
}


WHOLE = {
    "a finish reason far from the end": chunk(
        b'data: {"finish_reason":null,"text":"%s","completion_tokens":2}\n\n' % (b"x" * 2000)
    ),
    "a finish reason": chunk(event(2, {"type": "length"})),
    "an error": chunk(b'data: {"error":{"message":"out of memory"}}\n\n'),
    "[DONE]": chunk(b"data: [DONE]\n\n"),
    "the smallest": chunk(b"data: {}\n\n"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_an_event_that_is_not_in_the_middle_is_kept_whole_at_once(compiled_sweep, name: str) -> None:
    """All streams may end at once; what comes behind is not late because of it."""
    event_bytes, rest = WHOLE[name], chunk(event(4))
    (handed,) = both(compiled_sweep, [[FIRST, PLAIN, event_bytes, rest]])
    assert handed == [len(FIRST)]
    (handed,) = both(compiled_sweep, [[FIRST, PLAIN + event_bytes, event_bytes + rest + b"0\r\n\r\n"]])
    assert handed == [len(FIRST), 5]


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
    assert handed == [[len(FIRST), 5], [len(FIRST), 5], [len(FIRST + several), 5]]


def test_a_split_character_and_what_follows_it(compiled_sweep) -> None:
    at = PLAIN.index("é".encode()) + 1
    (handed,) = both(compiled_sweep, [[FIRST, PLAIN[:at], PLAIN[at:], chunk(event(3)), chunk(event(4))]])
    assert handed == [len(FIRST), at, len(PLAIN) - at]  # then it is in step again


@pytest.mark.parametrize("text", [b"a", b"a" * 300])
def test_tails_stay_whole_where_the_server_does_not_count(compiled_sweep, text: bytes) -> None:
    silent = chunk(b'data: {"choices":[{"text":"%s","finish_reason":null}]}\n\n' % text)
    (handed,) = both(compiled_sweep, [[HEAD + silent, *[silent] * 4]])
    assert handed == [len(HEAD + silent)]


@pytest.mark.parametrize("size", [60, 191, 192, 193, 194, 383, 384, 385, 386, 60_000])
def test_the_first_event_is_kept_whole_once_the_head_is_read(compiled_sweep, size: int) -> None:
    """Those of many streams come at once: none may wait for Python. ``size`` is the event's own."""
    first = chunk(padded(size + len(b"data: \n\n")))
    (handed,) = both(compiled_sweep, [[HEAD, first, PLAIN, chunk(event(3))]], room=1000)
    assert handed == [len(HEAD)]
    (handed,) = both(compiled_sweep, [[HEAD, first + PLAIN, chunk(event(3))]], room=1000)
    assert handed == [len(HEAD)]


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


PLANTED = {
    "a line break is overlooked": (" != end || end[-1] == '\\r') return 0;", " == NULL) return 0;"),
    "a carriage return is overlooked": (" || end[-1] == '\\r') return 0;", ") return 0;"),
    "the end is not compared": (" || memcmp(end, END, (size_t)LENGTH(END))", ""),
    "the beginning is not compared": ("memcmp(data + digits, PREFIX, (size_t)LENGTH(PREFIX)) || ", ""),
    "the mark is not compared": ("!memcmp(data + chunk - mark, MIDDLE, (size_t)LENGTH(MIDDLE))", "1"),
    "whether it is an object is not asked": ("if (data[head] != '{' || end[-1] != '}') return 0;", ""),
    "a tail too short": ("stop--; /*", "stop -= 2; /*"),
    "a tail from too far on": (
        "if (stop - start > TAIL) start =",
        "start++; if (stop - start > TAIL) start =",
    ),
    "the last event is not remembered": ("    slot->last_ns = read->now_ns;\n", ""),
    "a full log is overwritten": ("if (room < (whole ? (stop - start - 1) / TAIL + 1 : 1)) return 0;", ""),
    "parts are not counted": ("(stop - start - 1) / TAIL + 1 : 1", "1 : 1"),
    "a first event is not kept whole": ("*whole = (int)slot->first;", "*whole = 0;"),
    "a second event is kept whole": ("slot->first = 0;", ""),
    "a last event is not kept whole": ("*whole = !middle;", "*whole = 0; if (!middle) middle = end;"),
    "a whole event too short": ("start, stop, chunk, LAST_PART)", "start, stop - 1, chunk, LAST_PART)"),
    "a part too short": ("start, start + TAIL, 0, PART)", "start, start + TAIL - 1, 0, PART)"),
    "another size": ("start, stop, chunk, TAIL_OF)", "start, stop, chunk - 2, TAIL_OF)"),
    "another size of a whole event": ("start, stop, chunk, LAST_PART)", "start, stop, 0, LAST_PART)"),
    "another owner": ("entry->owner = (int32_t)slot->owner;", "entry->owner = 1;"),
    "what was kept is handed over too": ("read->size = got - at;", "read->size = got;"),
    "what is handed over begins elsewhere": ("read->from = s->used + at;", "read->from = s->used;"),
}


def telling_plays() -> list[list[bytes]]:
    """Responses in which each planted fault shows."""
    silent = chunk(b'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n')
    plays = [
        [FIRST, PLAIN, odd[:60_000], chunk(event(4)), chunk(event(5))] for odd in {**ODD, **WHOLE}.values()
    ]
    plays += [
        [FIRST, PLAIN + odd[:60_000], chunk(event(4)), chunk(event(5))] for odd in {**ODD, **WHOLE}.values()
    ]
    plays += [[HEAD, *(chunk(padded(size)) for _ in range(9))] for size in (150, 230, 500)]
    return [*plays, at_chunks(stream(30)), [HEAD + silent, *[silent] * 4]]


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_in_the_sweep_shows(compiled_sweep, tmp_path: Path, monkeypatch, name: str) -> None:
    right, wrong = PLANTED[name]
    source = library.SOURCE.read_text(encoding="utf-8")
    assert source.count(right) == 1
    for room in (7, 2):
        both(compiled_sweep, telling_plays(), room=room)
    (tmp_path / "sweep.c").write_text(source.replace(right, wrong), encoding="utf-8")
    monkeypatch.setattr("tokgate.load.library.SOURCE", tmp_path / "sweep.c")
    faulty = loaded(made(tmp_path / "lib", tmp_path))
    with pytest.raises((AssertionError, IndexError)):
        for room in (7, 2):
            both(faulty, telling_plays(), room=room)
