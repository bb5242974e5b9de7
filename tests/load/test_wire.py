"""Bytes cut anywhere give what bytes cut nowhere give, by both ways through the worker's loop."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.client.play import Play
from tests.load.damaged import at_chunks, cut, responses
from tests.load.peers import HEAD, chunk, event, stream
from tokgate.load.events import Facts, digest
from tokgate.load.record import Log, Record
from tokgate.load.wire import Response, chunk_size

EXAMPLES = int(os.environ.get("TOKGATE_FUZZ_EXAMPLES", "100"))
SAMPLES = sorted(Path(__file__).parent.glob("samples/*.sse"))


def parsed(pieces: list[bytes]) -> tuple[list[bytes], int, str, bytes, bool]:
    response = Response()
    events = [item for piece in pieces for item in response.feed(piece)]
    response.eof()
    return events, response.status, response.fault, bytes(response.body), response.finished


@settings(max_examples=EXAMPLES, deadline=None)
@given(responses(), st.lists(st.integers(0, 5000), max_size=20))
def test_parser_does_not_see_the_cuts(data: bytes, places: list[int]) -> None:
    whole = parsed([data])
    assert parsed(cut(data, places)) == whole
    assert parsed([data[i : i + 1] for i in range(len(data))]) == whole


def record_of(pieces: list[bytes], keep_output_ids: bool = False) -> tuple[Record, Response]:
    """What the worker keeps of a response that arrives as these reads."""
    with Play(keep_output_ids) as play:
        return play.record(pieces)


def kept(pieces: list[bytes], keep_output_ids: bool = False) -> tuple[object, ...]:
    """Everything that is judged later, times apart."""
    with Play(keep_output_ids) as play:
        return play.kept(pieces)


@settings(max_examples=EXAMPLES, deadline=None)
@given(responses(), st.lists(st.integers(0, 5000), max_size=20), st.booleans())
@example(stream(6, spec_verify_ct=3), [], False)
def test_reads_cut_at_chunks_or_anywhere_are_kept_alike(data: bytes, places: list[int], ids: bool) -> None:
    whole = kept([data], ids)
    assert kept(cut(data, places), ids) == whole
    with Play(ids) as play:
        for pieces in (at_chunks(stream(6)), at_chunks(data), at_chunks(data), cut(data, places)):
            found = play.kept(pieces)  # the quick way, once the shapes are known
        assert ids or found == whole
        assert ids or play.kept(at_chunks(data)) == whole


def test_the_quick_way_is_taken() -> None:
    """Events in the middle arrive as one read each; of the second stream, none of known shape is looked into."""
    pieces = at_chunks(stream(6))
    record, response = record_of(pieces)
    assert response.finished and not response.fault
    assert sorted(record.whole) == [0, 5, 6]  # the first, the final, [DONE]
    assert list(record.counters) == [-1, 2, 3, 4, 5, -1, -1]
    assert list(digest(record).counts) == [1, 2, 3, 4, 5, 6, 0]
    assert not record.kept

    pieces = [HEAD + chunk(event(100)), *(chunk(event(n)) for n in range(101, 110))]
    with Play() as play:
        play.record(pieces)
        assert play.looked == [len(piece) for piece in pieces]
        play.record(pieces)
        # The first holds head and event; the others are of known shape.
        assert play.looked == [len(pieces[0])]


def test_long_runs_hold_a_bounded_number_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokgate.load.record.BULK", 100)
    monkeypatch.setattr("tokgate.load.record.SHRINK_STEP", 30)
    log, record = Log(), Record(0, 8, 1)
    tail = b'"finish_reason":null,"completion_tokens":%d'
    for number in range(1, 401):
        log.append((record, number, bytes(16), tail % number, 9))
        log.shrink()
    assert log.count == 400 and len(record.users) == 300
    assert not record.kept  # of what was handed over, counters and times alone are left
    log.settle()
    assert list(record.users) == list(record.counters) == list(range(1, 401))


def test_tails_stay_where_the_server_does_not_count() -> None:
    log, record = Log(), Record(0, 8, 1)
    for _ in range(4):
        log.append((record, 1, bytes(16), b'"text":"a","finish_reason":null', 9))
    log.settle()
    assert list(record.counters) == [-1] * 4 and len(record.kept) == 4


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_real_bytes_cut_anywhere(path: Path) -> None:
    data = path.read_bytes()
    whole = kept([data])
    assert whole[2].outcome == "ok"
    assert kept([data[i : i + 1] for i in range(len(data))]) == whole
    assert kept(at_chunks(data)) == whole
    for size in (2, 3, 7, 50, 356, 357, 1000):
        assert kept([data[i : i + size] for i in range(0, len(data), size)]) == whole


def test_facts_of_real_bytes() -> None:
    by_name = {path.name: digest(record_of([path.read_bytes()])[0], True) for path in SAMPLES}
    assert len(by_name) == 3
    base, eagle, openai = (
        by_name[name] for name in ("base.generate.sse", "eagle3.generate.sse", "eagle3.completions.sse")
    )
    assert [n for n in base.counts if n] == list(range(1, 25))
    assert (
        [n for n in eagle.counts if n]
        == [n for n in openai.counts if n]
        == [1, 3, 6, 9, 10, 13, 14, 18, 19, 20, 24]
    )
    assert eagle.fields["verify_count"] == 10 and eagle.fields["accept_histogram"] == [4, 1, 3, 2]
    assert eagle.fields["output_ids"] == base.fields["output_ids"]
    assert base.fields["queue_s"] == 0.0 and base.fields["cached_tokens"] == 0
    assert "verify_count" not in base.fields and "verify_count" not in openai.fields
    assert base.server_e2e_s == pytest.approx(0.0446, abs=1e-4)


@pytest.mark.parametrize(
    ("line", "size"),
    [(b"1F", 31), (b"1f;name=value", 31), (b"0", 0), (b" 5 ", 5)]
    + [(line, None) for line in (b"", b"0x1f", b"+1", b"1_0", b"-1", b"123456789", "\u0661".encode())],
)
def test_chunk_sizes(line: bytes, size: int | None) -> None:
    assert chunk_size(line) == size


def test_text_cannot_imitate_counters_or_marks() -> None:
    text = json.dumps('"completion_tokens":999,"finish_reason":null')
    good = b'data: {"text":%s,"meta_info":{"finish_reason":null,"completion_tokens":%d}}\n\n'
    evil = b'data: {"meta_info":{"finish_reason":null,"completion_tokens":%d},"text":%s}\n\n'
    data = HEAD + b"".join(
        chunk(part)
        for part in (
            good % (text.encode(), 1),
            evil % (2, text.encode()),
            evil % (3, text.encode()),
            event(8, {"type": "length"}),
        )
    )
    record, _ = record_of(at_chunks(data + b"0\r\n\r\n"))
    assert list(digest(record).counts) == [1, 2, 3, 8]


def test_a_server_without_running_counters_is_said_to_be_one() -> None:
    parts = [
        b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    ]
    parts += [
        b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n' for _ in range(5)
    ]
    parts += [b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"length"}]}\n\n']
    usage = [b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":8}}\n\n']
    done = [b"data: [DONE]\n\n"]

    def judged(found: list[bytes]) -> Facts:
        return digest(record_of([HEAD, *map(chunk, found), b"0\r\n\r\n"])[0])

    counted = judged(parts + usage + done)
    assert (counted.outcome, counted.fields["completion_tokens"]) == ("ok", 8)
    assert list(counted.counts) == [0, -1, -1, -1, -1, -1, 0, 0, 0]
    silent = judged(parts + done)
    assert silent.outcome == "malformed" and "no token counter" in silent.detail


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (HEAD + b"5\r\nhello!", "chunk longer than its size"),
        (HEAD + b"g\r\n", "not a chunk size"),
        (HEAD + b"5" * 5000, "line too long"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000, "longer than 64 KiB"),
        (b"HTTP/2 200\r\n\r\n", "status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "Content-Length"),
        (HEAD + chunk(b"data: {}\n") + b"0\r\n\r\n", "inside an event"),
    ],
)
def test_what_is_no_response_is_said_to_be_none(data: bytes, fault: str) -> None:
    assert fault in parsed([data])[2]
    assert parsed([data[i : i + 7] for i in range(0, len(data), 7)]) == parsed([data])


def test_interim_responses_and_other_framings() -> None:
    body = event(1) + b"data: [DONE]\n\n"
    kind = b"Content-Type: text/event-stream\r\n"
    heads = {
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"
        + kind
        + b"Content-Length: %d\r\n\r\n" % len(body): True,
        b"HTTP/1.0 200 OK\r\n" + kind + b"\r\n": False,
        b"HTTP/1.1 200\r\n" + kind + b"\r\n": False,  # no reason phrase; found by fuzzing
        b"HTTP/1.1 200 OK\nContent-Type: text/event-stream\n\n": False,
    }
    for head, keep_alive in heads.items():
        response = Response()
        assert len(response.feed(head + body)) == 2
        response.eof()
        assert response.complete and response.keep_alive is keep_alive
