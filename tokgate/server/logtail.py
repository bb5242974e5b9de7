"""Follows a growing log file."""

from __future__ import annotations

import os
import re
from pathlib import Path

# A request that we made ourselves leaves an access line: it proves nothing about progress.
_ACCESS = re.compile(rb'INFO:\s+\S+:\d+ - "[A-Z]+ /')
_OF_CLIENTS = re.compile(_ACCESS.pattern + rb"|Request is disconnected from the client side")
_CHUNK_BYTES = 1 << 20


class LogTail:
    """Reads what was added to a log since the last look.

    Attributes:
        fresh_bytes: bytes seen so far that count as progress: everything but access lines.
        last_line: the last line that was not empty, of a progress bar its last state.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fresh_bytes = 0
        self.last_line = ""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._partial = b""
        self._partial_counted = 0

    def read(self) -> bytes:
        """What was added since the last call."""
        data = b""
        while chunk := os.read(self._descriptor, _CHUNK_BYTES):
            data += chunk
            *whole, self._partial = (self._partial + chunk).split(b"\n")
            for line in whole:
                if not _ACCESS.search(line):
                    self.fresh_bytes += len(line) + 1 - self._partial_counted
                    self._keep(line)
                self._partial_counted = 0
            # A progress bar rewrites one line for minutes.
            self.fresh_bytes += len(self._partial) - self._partial_counted
            self._partial_counted = len(self._partial)
            self._keep(self._partial)
        return data

    def close(self) -> None:
        """Give back the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _keep(self, line: bytes) -> None:
        shown = line.rstrip(b"\r").rsplit(b"\r", 1)[-1].strip()
        if shown:
            self.last_line = shown.decode(errors="replace")


def telling_lines(path: Path, count: int) -> list[str]:
    """The last lines that tell of the engine itself: none that a client of ours has caused."""
    lines = last_lines(path, 10 * count)
    return [line for line in lines if not _OF_CLIENTS.search(line.encode())][-count:]


def last_lines(path: Path, count: int, limit_bytes: int = 256 * 1024) -> list[str]:
    """The last lines of a log, progress bars reduced to their last state.

    Args:
        count: lines at most.
        limit_bytes: how much of the end of the file is read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n")]
    return [line for line in lines if line.strip()][-count:]
