"""Reads a whole log, however long: events in order, statistics lines in columns, memory bounded.

The measured rate stands in the performance notes of the documentation; the slow path is the reader of
:mod:`tokgate.sglang.log`, which decides about every line that is no usual statistics line.
"""

from __future__ import annotations

import codecs
import errno
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from io import FileIO
from pathlib import Path

from tokgate.errors import UsageFault
from tokgate.sglang import log_events as ev
from tokgate.sglang.log import LogReader
from tokgate.sglang.log_columns import Columns, read_columns
from tokgate.sglang.log_lines import MAX_LINE_BYTES

BLOCK_BYTES = 1 << 18
_GZIP_MAGIC = b"\x1f\x8b"
_ACCESS = b"] INFO: "
_ZERO = datetime(1970, 1, 1)


def check_readable(path: Path) -> None:
    """Find out whether a log can be read, before anything waits for it: a pipe may never get a writer.

    Raises:
        UsageFault: there is no such file, it cannot be read, or it is something else than a file.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            path.open("rb").close()
            return
    except OSError as error:
        raise UsageFault(f"cannot read log {path}: {error.strerror}") from error
    kinds = ((stat.S_ISDIR, "folder"), (stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"))
    kind = next((word for test, word in kinds if test(mode)), "device")
    advice = "name the logs in it" if kind == "folder" else "write what is to be read to a file first"
    raise UsageFault(f"cannot read log {path}: it is a {kind}, not a file", [advice])


def scan_file(path: Path) -> Iterator[ev.Event | Columns]:
    """Scan one file, packed with gzip or not; see :func:`scan`. A cut gzip stream gives what it holds.

    Raises:
        UsageFault: as :func:`check_readable`.
    """
    check_readable(path)
    cut: list[str] = []
    try:
        with path.open("rb", buffering=0) as file:
            packed = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            raw = iter(lambda: file.read(BLOCK_BYTES), b"")
            yield from scan(_unpacked(raw, cut) if packed else _without_holes(file))
    except OSError as error:
        raise UsageFault(f"cannot read log {path}: {error.strerror}") from error
    for text in cut:
        yield ev.Suspect(text=text)


def _without_holes(file: FileIO) -> Iterator[bytes]:
    """The blocks of a plain file; a newline for each hole, as a log has that was emptied under a running server."""
    at = 0
    while True:
        try:
            data = os.lseek(file.fileno(), at, os.SEEK_DATA)
            hole = os.lseek(file.fileno(), data, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # no data behind this
            # This file system does not tell: all of it is read.
            data, hole = at, sys.maxsize
        if data > at:
            yield b"\n"
        file.seek(data)
        at = data
        while at < hole and (block := file.read(min(BLOCK_BYTES, hole - at))):
            at += len(block)
            yield block
        if at < hole:
            return


def _unpacked(blocks: Iterable[bytes], cut: list[str]) -> Iterator[bytes]:
    """Unpacks gzip members; what is wrong at the end of the stream is told in ``cut``."""
    unpacker = zlib.decompressobj(wbits=31)
    for block in blocks:
        data = block
        while data:
            if unpacker.eof:
                unpacker = zlib.decompressobj(wbits=31)
            try:
                text = unpacker.decompress(data, BLOCK_BYTES)
            except zlib.error as error:
                cut.append(f"the gzip stream is damaged ({error}): read up to there")
                return
            if text:
                yield text
            data = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
    if not unpacker.eof:
        cut.append("the gzip stream is cut short: read as far as it goes")


def scan(blocks: Iterable[bytes]) -> Iterator[ev.Event | Columns]:
    """Events and columns of a log given in blocks.

    Args:
        blocks: the log's bytes, cut anywhere; a few hundred kilobytes each are fastest.

    Yields:
        :class:`Columns` for usual statistics lines, in order; events for everything else, each before
        the columns of its block. Unusual statistics lines come as events.
    """
    reader = LogReader()
    pending = b""
    source = iter(blocks)
    plain = None
    for block in source:
        pending += block
        if plain is None:
            if len(pending) < 3:
                continue
            plain = not pending.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if not plain:
            yield from reader.feed(pending)
            pending = b""
            continue
        end = pending.rfind(b"\n") + 1
        if end:
            yield from _scan_block(reader, pending[:end])
            pending = pending[end:]
        elif len(pending) > MAX_LINE_BYTES:
            # No newline in a megabyte: whatever it is, the reader bounds and cuts it.
            yield from reader.feed(pending[:MAX_LINE_BYTES])
            pending = pending[MAX_LINE_BYTES:]
    yield from reader.feed(pending)
    yield from reader.close()


def _scan_block(reader: LogReader, block: bytes) -> Iterator[ev.Event | Columns]:
    if not reader.at_line_start:
        # The rest of a line that was begun in an earlier block.
        end = block.find(b"\n") + 1
        yield from reader.feed(block[:end])
        block = block[end:]
        if not block:
            return
    columns, rest, after, ends_with_statistics = read_columns(block)
    kept: list[bytes] = []
    gap = False
    for line, follows in zip(rest, after.tolist(), strict=True):
        gap |= follows
        if _ACCESS in line and b"Uvicorn" not in line and b"\r" not in line:
            gap = True
            continue
        if gap and not line.startswith(b"["):
            # A line with a header stood right before, and was left out: it had ended any traceback.
            yield from reader.feed(_joined(kept))
            yield from reader.end_traceback()
            kept = []
        kept.append(line)
        gap = False
    yield from reader.feed(_joined(kept))
    if gap or ends_with_statistics:
        yield from reader.end_traceback()
    if columns is not None:
        yield columns


def _joined(lines: list[bytes]) -> bytes:
    return b"\n".join(lines) + b"\n" if lines else b""


def seconds_of(time: datetime | None) -> float | None:
    """Seconds since 1970 of a printed time, comparable with :attr:`Columns.time_s`."""
    return None if time is None else (time - _ZERO).total_seconds()


def time_of(seconds: float) -> datetime:
    """The printed time of :attr:`Columns.time_s`; the inverse of :func:`seconds_of`."""
    return _ZERO + timedelta(seconds=seconds)
