"""Responses, some damaged, and ways to cut them into reads."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from tests.load.peers import HEAD, chunk, event


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(at)]


def at_chunks(data: bytes) -> list[bytes]:
    """Cut behind everything that looks like the end of a one-event chunk."""
    return [part + b"\n\n\r\n" for part in data.split(b"\n\n\r\n")[:-1]] + [data.split(b"\n\n\r\n")[-1]]


pieces_of_sse = st.lists(
    st.one_of(
        st.integers(1, 9).map(event),
        st.integers(1, 9).map(lambda n: event(n, {"type": "length"})),
        st.sampled_from(
            [
                b"data: [DONE]\n\n",
                b": ping\n\n",
                b"event: x\r\ndata: {}\r\n\r\n",
                b'data:{"a":1}\ndata: 2\n\n',
                b'data: {"error":{"message":"m"}}\n\n',
                b"\n",
                b"data: half",
                b'data: {"choices":[{"text":"a","finish_reason":null}],"usage":{"completion_tokens":3}}\n\n',
            ]
        ),
        st.binary(max_size=40),
    ),
    max_size=12,
)


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """Mostly plausible responses, some damaged."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    parts = draw(pieces_of_sse)
    if draw(st.booleans()):
        data = HEAD + b"".join(chunk(part) for part in parts if part) + b"0\r\n\r\n"
    else:  # events and chunks that do not coincide
        body, data = b"".join(parts), HEAD
        for piece in cut(body, draw(st.lists(st.integers(0, 2000), max_size=6))):
            data += chunk(piece) if piece else b""
        data += b"0\r\n\r\n"
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 4)) :]
    return data
