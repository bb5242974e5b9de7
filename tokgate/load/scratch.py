"""The temporary folder of a measurement, which outlives no interruption.

Its name says which process made it, so that ``tokgate reap`` knows the folder of one that was killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokgate.host import marker
from tokgate.server import reaper

PREFIX = "tokgate-load-"
_NAME = re.compile(rf"{PREFIX}(?P<pid>\d+)-(?P<start>\d+)-(?P<namespace>[^-]+)-[0-9a-f]+")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A signal is heeded between two writes: a few milliseconds on any disk.
_WRITE_BYTES = 1 << 20


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A new folder below the temporary folder; removed on the way out, whatever raises and whenever."""
    owner = marker.owner_token().replace("/", "-").translate({ord("["): None, ord("]"): None})
    folder = Path(tempfile.gettempdir(), f"{PREFIX}{owner}-{secrets.token_hex(6)}")
    # The name is known before the folder is made: no signal falls between making and cleaning up.
    try:
        folder.mkdir(mode=0o700)
        with reaper.removed_if_killed(folder):
            yield folder
    finally:
        _remove(folder)


def write_requests(path: Path, bodies: Iterable[bytes]) -> list[tuple[int, int]]:
    """Write the requests one after the other; a signal interrupts it after at most a mebibyte.

    Args:
        path: the file.
        bodies: the requests.

    Returns:
        Where each begins and ends in the file, bytes.
    """
    spans, at = [], 0
    with path.open("wb") as file:
        for body in bodies:
            view = memoryview(body)
            for begin in range(0, len(body), _WRITE_BYTES):
                file.write(view[begin : begin + _WRITE_BYTES])
            spans.append((at, at + len(body)))
            at += len(body)
    return spans


def left_behind() -> list[Path]:
    """Folders of this user's measurements whose process is dead; one of another PID namespace is left out."""
    found = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        named = _NAME.fullmatch(path.name)
        if named is None or not _own_folder(path):
            continue
        if marker.owner_state("{pid}/{start}/[{namespace}]".format(**named.groupdict())) == "dead":
            found.append(path)
    return found


def _own_folder(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:  # removed in this moment
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _remove(folder: Path) -> None:
    """Remove it; a further signal waits until that is done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
