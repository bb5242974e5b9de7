"""Fuzz the client's parsers: ``python -m benchmarks.client.fuzz [--inputs 1000000] [--seed N]``.

Each input is a damaged response cut at random places. What the worker keeps of it must equal what it keeps
of the same bytes in one piece, by Python's reader and by the compiled one, which must agree in every field;
judging it must end in an outcome, never in an exception. Exits 1 with the input on the first difference.
Hypothesis does the same in the tests, in small.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.client.play import Play, fields, judged, tails_agree
from tokgate.load.events import Facts
from tokgate.load.library import Unavailable, loaded, made

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PROGRESS = 100_000
FORGET = 20_000  # inputs after which the readers start anew, so that memory stays bounded
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


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """The same bytes in pieces: behind what looks like a chunk's end, or anywhere."""
    if rng.random() < 0.5:
        parts = data.split(b"\n\n\r\n")
        return [piece for piece in [*(part + b"\n\n\r\n" for part in parts[:-1]), parts[-1]] if piece]
    places = sorted({0, len(data), *(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 12)))})
    return [data[a:b] for a, b in itertools.pairwise(places)]


class Difference(Exception):
    """The cuts change the result, or the readers differ."""


class Trial:
    """Plays inputs to both readers, which remember the shapes of inputs before.

    Args:
        library: the compiled sweep; ``None`` leaves Python's alone.

    Attributes:
        seen: reads of inputs without ids.
        recognised: of these, by reader, those that were recognised by their shape.
    """

    def __init__(self, library: ctypes.CDLL | None) -> None:
        self._libraries: dict[str, ctypes.CDLL | None] = {"python": None}
        if library is not None:
            self._libraries["c"] = library
        self._learned: dict[str, Play] = {}
        self._inputs = 0
        self.seen = 0
        self.recognised = dict.fromkeys(self._libraries, 0)

    def outcome(self, data: bytes, pieces: list[bytes], ids: bool) -> str:
        """The outcome that these bytes have, however they are cut.

        Args:
            data: a response.
            pieces: the same bytes, cut.
            ids: keep output ids.

        Raises:
            Difference: it is not the same for both.
        """
        if self._inputs % FORGET == 0:
            for play in self._learned.values():
                play.close()
            self._learned = {name: Play(library=library) for name, library in self._libraries.items()}
        self._inputs += 1
        with Play(ids) as play:
            whole = play.kept([data])
        records = []
        for name, library in self._libraries.items():
            # A reader that keeps ids learns from an input how to keep them: a new one each.
            play = Play(True, library) if ids else self._learned[name]
            record, response = play.record(pieces)
            if judged(record, response, ids) != whole:
                raise Difference(f"the cuts change the result, {name} reader\n{pieces!r}")
            records.append(record)
            if ids:
                play.close()
            else:
                self.recognised[name] += len(pieces) - len(play.looked)
        one, *others = records
        if any(fields(one) != fields(other) or not tails_agree(one, other) for other in others):
            raise Difference(f"the readers differ\n{pieces!r}")
        self.seen += 0 if ids else len(pieces)
        facts = whole[2]
        assert isinstance(facts, Facts)
        return facts.outcome


@contextmanager
def compiled_sweep() -> Iterator[ctypes.CDLL | None]:
    """The compiled sweep, made for this; ``None``, and a line that says why, where it cannot be."""
    with tempfile.TemporaryDirectory(prefix="tokgate-fuzz-") as folder:
        try:
            yield loaded(made(Path(folder), Path(folder)))
        except Unavailable as error:
            print(f"the compiled reader is not fuzzed: {error}")
            yield None


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
    with compiled_sweep() as library:
        trial = Trial(library)
        for number in range(options.inputs):
            data, ids = response(rng), rng.random() < 0.2
            try:
                outcome = trial.outcome(data, cut(data, rng), ids)
            except Difference as error:
                print(f"seed {seed}, input {number}: {error}")
                return 1
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if (number + 1) % PROGRESS == 0:
                print(f"{number + 1} inputs, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    counted = ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items()))
    print(f"{options.inputs} inputs, seed {seed}, {time.monotonic() - began:.0f} s: no difference; {counted}")
    shares = ", ".join(f"{name} {n / max(1, trial.seen):.0%}" for name, n in trial.recognised.items())
    print(f"reads recognised by their shape: {shares}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
