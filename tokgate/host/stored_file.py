"""Stored files: written whole or not at all, and read, changed and written by one tokgate at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokgate.errors import HostLocked, ResultsUnwritable
from tokgate.host.proc import command_line


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
    descriptor = _opened(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def measured_into(folder: Path) -> Iterator[None]:
    """Hold a folder for as long as is measured into it: another tokgate is refused, as by the lock of a GPU.

    Raises:
        HostLocked: another holds it; names it, where the kernel tells.
        ResultsUnwritable: the folder cannot be made or opened.
    """
    descriptor = _opened(folder)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HostLocked(
                f"{folder} is in use by another tokgate: {_holder(descriptor)}",
                ["two would each lose what the other measures: wait until it has ended"],
            ) from None
        yield
    finally:
        os.close(descriptor)


def hold(folder: Path) -> int | None:
    """Hold a folder, made when there is none, until the descriptor is closed or this process ends.

    Returns:
        The descriptor; ``None`` where another holds it or the file system has no locks.

    Raises:
        ResultsUnwritable: the folder cannot be made or opened.
    """
    descriptor = _opened(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def is_held(folder: Path) -> bool:
    """Whether somebody holds a folder; also where that cannot be told."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _opened(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ResultsUnwritable(f"{folder} cannot be written: {error.strerror}") from error


def _holder(descriptor: int) -> str:
    """Who holds the lock, by /proc/locks (``1: FLOCK ADVISORY WRITE 812 08:01:4711 0 EOF``)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        where = _as_in_locks(descriptor)
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            _, kind, _, _, pid, of = line.split()[:6]
            if (kind, of) == ("FLOCK", where) and (command := command_line(int(pid))):
                return f"pid {pid} ({' '.join(command.split())[:200]})"
    return "another process"


def _as_in_locks(descriptor: int) -> str:
    """What /proc/locks calls an open file: device of its file system and inode, ``08:01:4711``.

    That device is not ``st_dev`` on btrfs (each subvolume has one of its own) and may not be on overlayfs; the table of
    mounts has it. Inode and mount are told of what is open, the inode since Linux 5.14.
    """
    place = os.fstat(descriptor)
    told = dict(line.split(":", 1) for line in _lines(f"/proc/self/fdinfo/{descriptor}") if ":" in line)
    inode = int(told.get("ino", place.st_ino))
    for mount in _lines("/proc/self/mountinfo"):
        number, _, device = mount.split(maxsplit=3)[:3]
        if number == told.get("mnt_id", "").strip():
            major, _, minor = device.partition(":")
            return f"{int(major):02x}:{int(minor):02x}:{inode}"
    return f"{os.major(place.st_dev):02x}:{os.minor(place.st_dev):02x}:{inode}"


def _lines(path: str) -> list[str]:
    """Of a file of the kernel's; none where it is not there."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
