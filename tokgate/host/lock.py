"""One lock per GPU, so that two gates on a host queue or are refused.

The lock is flock(2) on a file named by the GPU's UUID: the kernel gives it back however its holder ends.
The file names the holder, and goes when the lock is given back; an acquirer therefore checks that the file
it has locked is still the one of that name. One folder per user, whatever the environment says, or
a shell and a CI service of the same user would not see each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tokgate.errors import HostFault, HostLocked
from tokgate.host import proc

_POLL_S = 0.2
_TOLD_EVERY_S = 60.0


def _folder() -> Path:
    return Path(os.environ.get("TOKGATE_RUNTIME_DIR") or f"/tmp/tokgate-{os.getuid()}")


def runtime_dir() -> Path:
    """Folder of locks: ``/tmp/tokgate-<uid>``, or ``TOKGATE_RUNTIME_DIR``; made when it is missing.

    Raises:
        HostFault: it belongs to another user, or cannot be made.
    """
    folder = _folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as error:
        raise HostFault(f"the folder of locks {folder} cannot be used: {error.strerror}") from error
    if owner != os.getuid():
        raise HostFault(
            f"the folder of locks {folder} belongs to user {owner}", ["set TOKGATE_RUNTIME_DIR to another"]
        )
    return folder


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, as its file says."""

    pid: int
    command: str
    since: float

    def __str__(self) -> str:
        held_s = max(0.0, time.time() - self.since)
        return f"pid {self.pid} ({self.command}), for {held_s:.0f} s"


class GpuLocks:
    """Locks of some GPUs. Taken in order of UUID, so that two gates cannot wait for each other.

    Args:
        uuids: of the GPUs; other names do as well (``cpu``).
        wait_s: how long to queue; 0: refuse at once; ``None``: for ever.
        on_wait: told in words, at first and every minute, for what it waits.

    Raises:
        HostLocked: on entering: another process holds one; names it.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        *,
        wait_s: float | None = 0.0,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self._paths = [runtime_dir() / f"{uuid}.lock" for uuid in sorted(set(uuids))]
        self._wait_s = wait_s
        self._on_wait = on_wait
        self._held: list[tuple[int, Path]] = []

    def __enter__(self) -> Self:
        began = time.monotonic()
        told_s: float | None = None
        for path in self._paths:
            while (descriptor := _try(path)) is None:
                now = time.monotonic()
                if self._wait_s is not None and now - began >= self._wait_s:
                    self._release()
                    raise _locked(path, self._wait_s)
                if self._on_wait is not None and (told_s is None or now - told_s > _TOLD_EVERY_S):
                    self._on_wait(f"waiting for {path.stem}, held by {_holder_words(path)}")
                    told_s = now
                time.sleep(_POLL_S)
            self._held.append((descriptor, path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        while self._held:
            descriptor, path = self._held.pop()
            # While we hold the lock nobody else has a lock on the file of that name.
            path.unlink(missing_ok=True)
            os.close(descriptor)


def holder(path: Path) -> Holder | None:
    """Who holds the lock of that file; ``None`` when the file does not say."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Holder(int(data["pid"]), str(data["command"]), float(data["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_stale(owner: int | None = None) -> list[Path]:
    """Remove lock files that nobody holds any more.

    Args:
        owner: only those that this process had held.
    """
    removed = []
    for path in sorted(_folder().glob("*.lock")):
        named = holder(path)
        if owner is not None and (named is None or named.pid != owner):
            continue
        descriptor = _open_locked(path)
        if descriptor is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            removed.append(path)
    return removed


def _try(path: Path) -> int | None:
    descriptor = _open_locked(path)
    if descriptor is not None:
        words = {"pid": os.getpid(), "command": " ".join(sys.argv)[:200], "since": time.time()}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(words).encode(), 0)
    return descriptor


def _open_locked(path: Path) -> int | None:
    """The file of that name, opened and locked; ``None`` when another holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:  # noqa: PTH116
                return descriptor
        # Its holder gave it back, and the file went, between our open and our lock.
        os.close(descriptor)


def _holder_words(path: Path) -> str:
    found = holder(path)
    return str(found) if found else "another process"


def _locked(path: Path, waited_s: float) -> HostLocked:
    found = holder(path)
    alive = found is not None and proc.read(found.pid) is not None
    after = f" after {waited_s:.0f} s of waiting" if waited_s else ""
    return HostLocked(
        f"{path.stem} is in use by another tokgate{after}: {_holder_words(path)}",
        ["wait for it (--wait-gpu-s S), or choose other GPUs (--gpus)"]
        + ([] if alive else ["its holder is not visible from here: another container?"]),
    )
