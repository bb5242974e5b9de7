"""One compressed archive, cut into pieces of a given size."""

from __future__ import annotations

import hashlib
import lzma
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, cast

from tokgate.errors import HostFault

BLOCK = 2**20
DICTIONARY_MIB = 64
# Branch addresses of x86 code are made alike before they are compressed: shared libraries are most of a pack.
XZ = ("xz", "--format=xz", "--threads=0", "--x86", f"--lzma2=preset=6,dict={DICTIONARY_MIB}MiB", "--stdout")
FILTERS = [
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": DICTIONARY_MIB * 2**20},
]


class Sink(Protocol):
    """Anything that takes bytes."""

    def write(self, data: bytes, /) -> object:
        """Take bytes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece.

    Attributes:
        name: of the file.
        sha256: digest of its content.
        size_bytes: its size.
    """

    name: str
    sha256: str
    size_bytes: int


class Pieces:
    """Cuts what is written to it into files of a given size. A context manager."""

    def __init__(self, folder: Path, piece_bytes: int) -> None:
        self._folder = folder
        self._piece_bytes = piece_bytes
        self._buffer = bytearray()
        self.done: list[Piece] = []

    def write(self, data: bytes, /) -> int:
        """Take bytes; each full piece is on the disk at once."""
        self._buffer += data
        while len(self._buffer) >= self._piece_bytes:
            self._flush(self._piece_bytes)
        return len(data)

    def close(self) -> None:
        """Write what is left."""
        if self._buffer:
            self._flush(len(self._buffer))

    def _flush(self, count: int) -> None:
        content = bytes(self._buffer[:count])
        del self._buffer[:count]
        name = f"piece-{len(self.done):03}"
        (self._folder / name).write_bytes(content)
        self.done.append(Piece(name, hashlib.sha256(content).hexdigest(), len(content)))


def write(site: Path, names: Iterable[str], out: Path, piece_bytes: int) -> list[Piece]:
    """Compress these files into pieces. The same files give the same pieces.

    Args:
        site: folder of the files.
        names: paths in it.
        out: folder of the pieces.
        piece_bytes: size of every piece but the last.

    Raises:
        HostFault: xz failed.
    """
    # Like next to like: all shared libraries, then all sources, ...
    ordered = sorted(names, key=lambda name: (Path(name).suffix, name))
    pieces = Pieces(out, piece_bytes)
    if not ordered:
        return []
    if shutil.which("xz"):
        _by_program(site, ordered, pieces)
    else:
        compressor = lzma.LZMACompressor(lzma.FORMAT_XZ, filters=FILTERS)
        _tar(site, ordered, _Compressed(compressor, pieces))
        pieces.write(compressor.flush())
    pieces.close()
    return pieces.done


def _by_program(site: Path, names: list[str], pieces: Pieces) -> None:
    process = subprocess.Popen(XZ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if process.stdin is None or process.stdout is None:
        raise HostFault("xz has no pipes")
    output = process.stdout

    def drain() -> None:
        with output:
            while block := output.read(BLOCK):
                pieces.write(block)

    reader = threading.Thread(target=drain)
    reader.start()
    try:
        with process.stdin as stream:
            _tar(site, names, stream)
    finally:
        reader.join()
        code = process.wait()
    if code:
        raise HostFault(f"xz failed with exit code {code}")


def _tar(site: Path, names: list[str], stream: Sink) -> None:
    with tarfile.open(fileobj=cast(IO[bytes], stream), mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            path = site / name
            member = tarfile.TarInfo(name)
            member.size = path.stat().st_size
            member.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as content:
                archive.addfile(member, content)


class _Compressed:
    """Compresses what is written to it: what Python's own lzma does where there is no xz."""

    def __init__(self, compressor: lzma.LZMACompressor, pieces: Pieces) -> None:
        self._compressor = compressor
        self._pieces = pieces

    def write(self, data: bytes, /) -> int:
        """Take bytes of the archive."""
        self._pieces.write(self._compressor.compress(data))
        return len(data)
