"""A small process that ends what a killed tokgate left running.

One runs beside each tokgate that launches engines. It waits until its owner is gone (end of its input,
or the owner's pidfd: a forked child may hold the pipe open), then kills every launch that was not
ended and removes the files and locks that go with them. It starts on the first launch and ends with its
owner.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import tokgate
from tokgate.host import lock, marker

_LAST_WAIT_S = 10.0
_lock = threading.Lock()
_process: subprocess.Popen[bytes] | None = None


def watch(mark: str, files: Sequence[Path] = ()) -> None:
    """From now on, should this process die, everything with that mark is killed and ``files`` are removed."""
    _tell(f"watch {mark}")
    for path in files:
        _tell(f"file {mark} {path}")


def forget(mark: str) -> None:
    """The launch has been ended."""
    with _lock:
        running = _process is not None and _process.poll() is None
    if running:
        _tell(f"forget {mark}")


@contextlib.contextmanager
def removed_if_killed(folder: Path) -> Iterator[None]:
    """While entered, a reaper that runs already removes a temporary folder if this process is killed."""
    with _lock:
        running = _process is not None and _process.poll() is None and not _owner_changed()
    if running:
        _tell(f"folder {folder}")
    try:
        yield
    finally:
        if running:
            _tell(f"leave {folder}")


def _tell(line: str) -> None:
    global _process
    with _lock:
        if _process is None or _process.poll() is not None or _owner_changed():
            _process = _start()
        assert _process.stdin is not None
        try:
            _process.stdin.write(line.encode() + b"\n")
            _process.stdin.flush()
        except BrokenPipeError:
            _process = None


def _close() -> None:
    """At exit: let the reaper do its work, and collect it."""
    global _process
    with _lock:
        running, _process = None if _owner_changed() else _process, None
    if running is not None and running.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            running.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(_LAST_WAIT_S)


atexit.register(_close)


def _owner_changed() -> bool:
    # After a fork the parent's reaper watches the parent, not us.
    return _process is not None and _process.args[-1] != str(os.getpid())  # type: ignore[index]


def _start() -> subprocess.Popen[bytes]:
    root = str(Path(tokgate.__file__).parent.parent)
    environment = {key: value for key, value in os.environ.items() if key not in (marker.MARK, marker.OWNER)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-S", "-m", "tokgate.server.reaper", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd="/",
        start_new_session=True,
    )


def main(owner: int) -> None:
    """Body of the reaper.

    Args:
        owner: pid of the tokgate that is watched.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    descriptor = _watched(owner)
    marks: dict[str, list[Path]] = {}
    folders: set[Path] = set()
    pending = b""
    while True:
        ready, _, _ = select.select([0, *([descriptor] if descriptor >= 0 else [])], [], [])
        if 0 in ready:
            chunk = os.read(0, 65536)
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                _take(line.decode(), marks, folders)
            if not chunk:
                break
        elif descriptor in ready:
            break
    for mark, files in marks.items():
        marker.kill(mark)
        for path in files:
            path.unlink(missing_ok=True)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    lock.remove_stale(owner)


def _watched(owner: int) -> int:
    """A pidfd of our parent; -1 when it is gone already: the end of our input tells that as well."""
    try:
        return os.pidfd_open(owner) if os.getppid() == owner else -1
    except ProcessLookupError:  # killed, and collected, between the two
        return -1


def _take(line: str, marks: dict[str, list[Path]], folders: set[Path]) -> None:
    word, _, rest = line.partition(" ")
    if word == "watch":
        marks.setdefault(rest, [])
    elif word == "file":
        mark, _, path = rest.partition(" ")
        marks.setdefault(mark, []).append(Path(path))
    elif word == "forget":
        marks.pop(rest, None)
    elif word == "folder":
        folders.add(Path(rest))
    elif word == "leave":
        folders.discard(Path(rest))


if __name__ == "__main__":
    main(int(sys.argv[1]))
