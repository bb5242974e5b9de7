"""The compiled sweep as a shared library: made once a machine with the system's compiler, verified before each use.

Standard library only: the measuring worker imports it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import secrets
import shutil
import signal
import stat
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("sweep.c")
COMPILER = "cc"
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared")
COMPILE_S = 20.0
_hung: set[str] = set()
"""Compilers that did not end, which this process does not wait for again."""

_DIGEST_BYTES = hashlib.sha256().digest_size


class Unavailable(Exception):
    """The compiled sweep cannot be used here; says why in one line."""


def made(folder: Path, workplace: Path) -> Path:
    """The library, compiled if it is not there or not whole. Two makers at once both succeed.

    Args:
        folder: where libraries are kept, by the digest of what they are made from.
        workplace: an empty place to compile in.

    Raises:
        Unavailable: no compiler, it fails, or the folder cannot be written or is others' to write.
    """
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise Unavailable(f"there is no compiler '{COMPILER}' on this machine")
    try:
        path = folder / f"sweep-{_made_from(compiler)}.so"
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        _own(folder)
        if not _whole(path):
            _keep(path, _compile(compiler, workplace / path.name))
    except OSError as error:
        raise Unavailable(f"{error.filename or folder}: {error.strerror or error}") from error
    return path


def loaded(path: Path) -> ctypes.CDLL:
    """Load a library that :func:`made` gave.

    Raises:
        Unavailable: it is not whole, or the system does not load it (a file system without exec).
    """
    try:
        if not _whole(path):
            raise Unavailable(f"{path} is damaged")
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"it cannot be loaded: {error}") from error


def _made_from(compiler: str) -> str:
    """Digest of source, compiler, flags and platform."""
    version = _version(compiler)
    kind = f"{platform.machine()} {platform.libc_ver()} {' '.join(FLAGS)}".encode()
    parts = (SOURCE.read_bytes(), os.fsencode(os.path.realpath(compiler)), version, kind)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


@cache
def _version(compiler: str) -> bytes:
    return _run([compiler, "--version"])


def _run(command: list[str]) -> bytes:
    """What a compiler prints."""
    hung = f"compiler '{COMPILER}' did not end within {COMPILE_S:g} s and was killed"
    if command[0] in _hung:
        raise Unavailable(hung)
    # In a session of its own: what a compiler starts (or a wrapper of one) is killed with it.
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as running:
        try:
            out, err = running.communicate(timeout=COMPILE_S)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            _hung.add(command[0])
            raise Unavailable(hung) from None
    if running.returncode:
        lines = err.decode("utf-8", "replace").strip().splitlines()
        why = next((line for line in lines if "error" in line), lines[-1] if lines else "it says nothing")
        raise Unavailable(f"compiler '{COMPILER}' fails with exit code {running.returncode}: {why[:200]}")
    return out


def _compile(compiler: str, to: Path) -> bytes:
    _run([compiler, *FLAGS, "-o", str(to), str(SOURCE)])
    return to.read_bytes()


def _own(folder: Path) -> None:
    """Code is loaded from nowhere that others may write."""
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unavailable(f"{folder} is not this user's alone to write")


def _keep(path: Path, library: bytes) -> None:
    """Write it with its digest behind it, which loaders do not mind; it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(library + hashlib.sha256(library).digest())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _whole(path: Path) -> bool:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    library, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    return bool(library) and hashlib.sha256(library).digest() == digest
