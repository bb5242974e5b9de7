"""Statistics lines by the million: whole blocks of a log read into columns with numpy.

The reader of :mod:`tokgate.sglang.log` makes an object of every line, which is right for a server that
starts and too slow for half a gigabyte. Here the usual form of ``Decode batch`` and ``Prefill batch``
lines is found and read in bulk; every other line, and every unusual form, is handed back for the reader.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_EPOCH = date(1970, 1, 1)
_LONGEST_HEADER = 60
_RANK_WIDTH = 24
_NUMBER_WIDTH = 12
_DECODE = b"] Decode batch,"
_PREFILL = b"] Prefill batch,"
_REQUEST = b"] INFO:     "
_RUNNING = b"#running-req: "
_ACCEPT = b"accept len: "
_RATE = b"gen throughput (token/s): "
_GRAPHS = (b"cuda graph: ", b"cpu graph: ")
_POWERS = 10.0 ** np.arange(_NUMBER_WIDTH - 1, -1, -1)


@dataclass(frozen=True, slots=True)
class Columns:
    """Statistics lines of one block, in the order in which they stand.

    Attributes:
        time_s: seconds since 1970 of the printed, zoneless time.
        rank: index into ``ranks``.
        decode: True for a decode line, False for a prefill line.
        running: requests being decoded.
        rate_tok_s: generated tokens a second; NaN on prefill lines.
        accept_length: NaN where the line has none.
        graph: 1 replayed from a graph, 0 not.
        cpu_graph: whether the line says ``cpu graph``.
        ranks: as printed behind the time, ``""`` when there is none.
    """

    time_s: Offsets
    rank: Offsets
    decode: NDArray[np.bool_]
    running: Offsets
    rate_tok_s: NDArray[np.float64]
    accept_length: NDArray[np.float64]
    graph: NDArray[np.int8]
    cpu_graph: NDArray[np.bool_]
    ranks: tuple[str, ...] = field(default=("",))

    def __len__(self) -> int:
        return len(self.time_s)


def read_columns(block: bytes) -> tuple[Columns | None, list[bytes], NDArray[np.bool_], bool]:
    """Read a block's statistics lines; lines of requests, of which nothing is kept, are left out with them.

    Args:
        block: whole lines, the last one ended by a newline.

    Returns:
        The columns, ``None`` when the block has none; the other lines in order; and for each of those
        whether a line that was taken stood right before it; last, whether the block ends with one.
    """
    data: Bytes = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == 10)
    starts = np.concatenate(([0], ends[:-1] + 1))
    line, message, decode, requests = _messages(data, starts, ends)
    columns, taken = _fields(data, line, starts[line], message, ends[line], decode)
    mask = np.zeros(len(starts), bool)
    mask[taken] = mask[requests] = True
    others = np.flatnonzero(~mask)
    rest = [block[starts[at] : ends[at]] for at in others]
    before = np.concatenate(([False], mask[:-1]))[others]
    return columns, rest, before, bool(mask[-1])


def _messages(
    data: Bytes, starts: Offsets, ends: Offsets
) -> tuple[Offsets, Offsets, NDArray[np.bool_], Offsets]:
    """Statistics lines: their numbers, where their header ends, and whether they are decode lines; last, the
    numbers of lines of requests: uvicorn's, which begin with the client's address.

    Only lines that begin with their one bracket, without carriage return or colour.
    """
    brackets = np.flatnonzero((data == 91) | (data == 13) | (data == 27))
    first = np.searchsorted(brackets, starts)
    count = np.searchsorted(brackets, ends) - first
    lines = np.flatnonzero((count == 1) & (data[starts] == 91))
    closing = np.flatnonzero(data == 93)
    index = np.searchsorted(closing, starts[lines])
    found = index < len(closing)
    lines, message = lines[found], closing[index[found]]
    length = message - starts[lines]
    near = (length >= 20) & (length < _LONGEST_HEADER) & (message + len(_PREFILL) < ends[lines])
    lines, message = lines[near], message[near]
    decode = _reads(data, message, _DECODE)
    either = decode | _reads(data, message, _PREFILL)
    digit = data[message + len(_REQUEST)] - np.uint8(48)
    requests = lines[_reads(data, message, _REQUEST) & (digit <= 9)]
    return lines[either], message[either], decode[either], requests


def _reads(data: Bytes, at: Offsets, literal: bytes) -> NDArray[np.bool_]:
    """Where the literal (8 bytes at least) stands at the offsets: eight bytes are compared at once."""
    words = np.ndarray(max(len(data) - 7, 0), np.uint64, data, strides=(1,))
    fits = at + len(literal) <= len(data)
    same = fits.copy()
    for begin in {*range(0, len(literal) - 8, 8), len(literal) - 8}:
        wanted = np.frombuffer(literal[begin : begin + 8], np.uint64)[0]
        same &= words[np.where(fits, at + begin, 0)] == wanted
    return np.asarray(same, bool)


def _fields(
    data: Bytes,
    line: Offsets,
    begin: Offsets,
    message: Offsets,
    end: Offsets,
    decode: NDArray[np.bool_],
) -> tuple[Columns | None, Offsets]:
    """Read the fields between the commas, where they stand as usual."""
    commas = np.concatenate((np.flatnonzero(data == 44), [len(data)]))
    first = np.searchsorted(commas, message)

    def field_at(number: Offsets | int) -> tuple[Offsets, Offsets]:
        left = np.minimum(first + number, len(commas) - 1)
        right = commas[np.minimum(left + 1, len(commas) - 1)]
        return commas[left] + 2, np.minimum(right, end)

    run_from, run_to = field_at(np.where(decode, 0, 4))
    running, good = _number(data, run_from + len(_RUNNING), run_to, points=False)
    good &= _reads(data, run_from, _RUNNING)
    accept_from, accept_to = field_at(3)
    speculative = decode & _reads(data, accept_from, _ACCEPT)
    accept, accept_ok = _number(data, accept_from + len(_ACCEPT), accept_to, points=True)
    graph_from, _ = field_at(np.where(decode, np.where(speculative, 5, 3), 7))
    rate_from, rate_to = field_at(np.where(speculative, 6, 4))
    rate, rate_ok = _number(data, rate_from + len(_RATE), rate_to, points=True)
    cuda, cpu = (_reads(data, graph_from, label) for label in _GRAPHS)
    answer = data[np.minimum(graph_from + np.where(cuda, len(_GRAPHS[0]), len(_GRAPHS[1])), len(data) - 1)]
    good &= (cuda | cpu) & (graph_from < end) & ((answer == ord("T")) | (answer == ord("F")))
    good &= (rate_ok & _reads(data, rate_from, _RATE) & (rate_to < end)) | ~decode
    good &= accept_ok | ~speculative
    time_s, time_ok = _times(data, begin)
    good &= time_ok & (message - begin - 20 <= _RANK_WIDTH)
    rank, ranks = _ranks(data, begin + 20, message)
    columns = Columns(
        time_s=time_s[good],
        rank=rank[good],
        decode=decode[good],
        running=running[good].astype(np.int64),
        rate_tok_s=np.where(decode, rate, np.nan)[good],
        accept_length=np.where(speculative, accept, np.nan)[good],
        graph=(answer == ord("T"))[good].astype(np.int8),
        cpu_graph=cpu[good],
        ranks=ranks,
    )
    return (columns if len(columns) else None), line[good]


def _number(
    data: Bytes, begin: Offsets, end: Offsets, *, points: bool
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The numbers in ``begin..end``: whole, or with two decimals, as SGLang prints them."""
    window = data[np.maximum(end[:, None] + np.arange(-_NUMBER_WIDTH, 0), 0)] - np.uint8(48)
    length = end - begin
    if points:
        ok = (length >= 4) & (length <= _NUMBER_WIDTH) & (window[:, -3] == 254)
        window[:, 1:-2] = window[:, :-3].copy()
        window[:, 0] = 0
        length = length - 1
    else:
        ok = (length >= 1) & (length <= _NUMBER_WIDTH)
    window[np.arange(_NUMBER_WIDTH) < (_NUMBER_WIDTH - length)[:, None]] = 0
    ok &= (window <= 9).all(axis=1)
    value = window @ _POWERS
    return (value / 100 if points else value), np.asarray(ok, bool)


def _times(data: Bytes, begin: Offsets) -> tuple[Offsets, NDArray[np.bool_]]:
    """Seconds since 1970 of ``[YYYY-MM-DD HH:MM:SS``; False where the form is another."""
    window = data[np.minimum(begin[:, None] + np.arange(1, 20), len(data) - 1)].astype(np.int64) - 48
    digits = window[:, [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18]]
    ok = ((digits >= 0) & (digits <= 9)).all(axis=1) & (window[:, 4] == ord("-") - 48)
    days = digits[:, :8] @ (10 ** np.arange(7, -1, -1))
    seconds = digits[:, 8:] @ np.array([36000, 3600, 600, 60, 10, 1])
    unique, inverse = np.unique(days, return_inverse=True)
    epochs = np.array([_day(int(packed)) for packed in unique])
    ok &= epochs[inverse] >= 0
    return epochs[inverse] * 86400 + seconds, np.asarray(ok, bool)


def _day(packed: int) -> int:
    try:
        return (date(packed // 10000, packed // 100 % 100, packed % 100) - _EPOCH).days
    except ValueError:
        return -1


def _ranks(data: Bytes, begin: Offsets, end: Offsets) -> tuple[Offsets, tuple[str, ...]]:
    """What stands between the time and the bracket."""
    if (begin == end).all():
        return np.zeros(len(begin), np.int64), ("",)
    window = data[np.minimum(begin[:, None] + np.arange(_RANK_WIDTH), len(data) - 1)].copy()
    window[np.arange(_RANK_WIDTH) >= (end - begin)[:, None]] = 0
    names = window.view(f"S{_RANK_WIDTH}").ravel()
    if (window == window[0]).all():
        # Mostly one rank prints the statistics: nothing to sort.
        return np.zeros(len(begin), np.int64), (bytes(names[0]).decode("utf-8", "replace").strip(),)
    unique, inverse = np.unique(names, return_inverse=True)
    return inverse.astype(np.int64), tuple(bytes(name).decode("utf-8", "replace").strip() for name in unique)
