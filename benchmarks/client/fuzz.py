"""Fuzz the client's parsers: ``python -m benchmarks.client.fuzz [--inputs 1000000] [--seed N]``.

Each input is a damaged response cut at random places. What the worker keeps of it must equal what it keeps
of the same bytes in one piece, and judging it must end in an outcome, never in an exception. Exits 1 with
the input on the first difference. Hypothesis does the same in the tests, in small.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time

from tokgate.load.connection import READ_SIZE, READABLE, Stream
from tokgate.load.events import digest
from tokgate.load.reader import Control, Reader
from tokgate.load.record import Line, Log, Record
from tokgate.load.wire import Response

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WORDS = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\n\n",
        b"data: ",
        b"data:",
        b"0\r\n\r\n",
        b"data: [DONE]\n\n",
        b"\x00",
        b"\xff",
    ),
    *(
        b'"finish_reason":null',
        b'"completion_tokens":7',
        b'{"error":{}}',
        b"}\n\n\r\n",
        b"ffffffff\r\n",
        b": c\n",
    ),
)


def chunk(payload: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def response(rng: random.Random) -> bytes:
    """A response, most often damaged."""
    body = []
    for number in range(1, rng.randrange(2, 8)):
        finish = {"type": "length"} if rng.random() < 0.2 else None
        meta = {"finish_reason": finish, "prompt_tokens": 3, "completion_tokens": number, "cached_tokens": 0}
        text = "é" * rng.choice((1, 3, 200)) if rng.random() < 0.9 else '"finish_reason":null'
        event = {"text": text, "output_ids": list(range(number)), "meta_info": meta}
        body.append(
            b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
        )
    body.append(b"data: [DONE]\n\n")
    data = bytearray(HEAD + b"".join(map(chunk, body)) + b"0\r\n\r\n")
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        kind = rng.random()
        if kind < 0.4:
            data[at:at] = rng.choice(WORDS)
        elif kind < 0.7:
            del data[at : at + rng.randrange(1, 30)]
        else:
            data[at : at + 1] = rng.randbytes(rng.randrange(1, 4))
    return bytes(data)


class Play:
    """Plays reads to a reader as the worker's loop does.

    Args:
        keep_output_ids: as the worker is asked.

    Attributes:
        looked: sizes of the reads that were not recognised by their shape.
    """

    def __init__(self, keep_output_ids: bool = False) -> None:
        self._ids = keep_output_ids
        self._log = Log()
        self._reader = Reader(self._log, keep_output_ids)
        self.looked: list[int] = []

    def record(self, pieces: list[bytes]) -> tuple[Record, Response]:
        """What the worker keeps of a response that arrives in these reads. Shapes learned before stay known."""
        stream, record, over = Stream(), Record(0, 3, 1), False
        stream.begin(record, memoryview(b""), 1)
        record.line, consumed = Line(1), 0
        reads = [piece[at : at + READ_SIZE] for piece in pieces for at in range(0, len(piece), READ_SIZE)]
        self.looked.clear()

        def recv(buffers: list[bytearray], _: int) -> tuple[int, Control, int, None]:
            nonlocal consumed
            piece = reads.pop(0)
            consumed += len(piece)
            buffers[0][: len(piece)] = piece
            return len(piece), [], 0, None

        def rest(_fd: int, _mask: int, _s: Stream | None, size: int, control: Control, now: int) -> None:
            nonlocal over
            self.looked.append(size)
            over = self._reader.take(stream, size, control, now)

        stream.recv = recv
        while reads and not over:
            self._reader.sweep([(7, READABLE)], {7: stream}, rest)
        if not over:
            stream.response.eof()
        self._log.settle()
        if record.line.offset != consumed or sorted(record.ends) != list(record.ends):
            raise AssertionError(f"{consumed} bytes read, {record.line.offset} accounted for: {pieces!r}")
        return record, stream.response

    def kept(self, pieces: list[bytes]) -> tuple[object, ...]:
        """All that is judged later, times apart."""
        record, response = self.record(pieces)
        return (
            len(record.counters) if self._ids else list(record.counters),
            None if self._ids else record.whole,
            digest(record, self._ids),
            response.fault,
            response.status,
            response.finished,
            bytes(response.body),
        )


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """The same bytes in pieces: behind what looks like a chunk's end, or anywhere."""
    if rng.random() < 0.5:
        parts = data.split(b"\n\n\r\n")
        return [piece for piece in [*(part + b"\n\n\r\n" for part in parts[:-1]), parts[-1]] if piece]
    places = sorted({0, len(data), *(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 12)))})
    return [data[a:b] for a, b in itertools.pairwise(places)]


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None, help="default: the clock")
    options = parser.parse_args()
    seed = time.time_ns() if options.seed is None else options.seed
    rng = random.Random(seed)
    outcomes: dict[str, int] = {}
    began = time.monotonic()
    learned, seen, recognised = Play(), 0, 0
    for number in range(options.inputs):
        data, ids = response(rng), rng.random() < 0.2
        whole, pieces = Play(ids).kept([data]), cut(data, rng)
        # Reads without ids go to one reader throughout, which knows the shapes of all inputs before.
        if (Play(True) if ids else learned).kept(pieces) != whole:
            print(f"seed {seed}, input {number}: the cuts change the result\n{pieces!r}")
            return 1
        if not ids:
            seen, recognised = seen + len(pieces), recognised + len(pieces) - len(learned.looked)
        outcome = whole[2].outcome  # type: ignore[attr-defined]
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    counted = ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items()))
    print(f"{options.inputs} inputs, seed {seed}, {time.monotonic() - began:.0f} s: no difference; {counted}")
    print(f"{recognised / max(1, seen):.0%} of the reads were recognised by their shape")
    return 0


if __name__ == "__main__":
    sys.exit(main())
