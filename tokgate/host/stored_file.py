"""Stored files: written whole or not at all, and read, changed and written by one tokgate at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokgate.errors import ResultsUnwritable


def write_whole(path: Path, text: str) -> None:
    """Write a text file, its folder made when missing, so that it is there whole or not at all.

    A link stays, and what it points to is written. What is no file (``/dev/stdout``, a pipe) is written to and
    never replaced.

    Raises:
        ResultsUnwritable: disk full, folder read-only or not to be made, a folder of that name.
    """
    if is_special(path):
        _write_through(path, text)
        return
    place = path.resolve()
    # Not tempfile: its files are readable by their owner alone, and results are for others too.
    temporary = place.with_name(f".{place.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(place)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ResultsUnwritable(f"{path} cannot be written: {error.strerror}") from error


def is_special(path: Path) -> bool:
    """Whether a path leads to something that is neither a file nor a folder: a device, a pipe, a socket."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _write_through(path: Path, text: str) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ResultsUnwritable(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder of stored files while one is read, changed and written: another tokgate waits.

    The folder itself is locked (flock(2)): nothing is left behind that git would show, and the kernel gives
    the lock back however its holder ends.

    Raises:
        ResultsUnwritable: the folder cannot be made or opened.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ResultsUnwritable(f"{folder} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
