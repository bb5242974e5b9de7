"""Which environments are there, and room for new ones: the least recently used go first."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from filelock import FileLock, Timeout

from tokgate.environments.sources import FOLDER as WHEELS
from tokgate.environments.store import ENGINE, HELD, MARKER, USED, Say, disk_bytes, gb
from tokgate.errors import HostFault, UsageFault

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Kept:
    """One environment, or one built wheel.

    Attributes:
        name: as ``--engine`` takes it; of a wheel ``.wheels/...``.
        folder: where it lies.
        version: of SGLang; empty for a wheel or an environment that was never finished.
        made_from: the request that made it; empty where none is recorded.
        disk_bytes: space that it takes.
        used_at: when it was last made or measured, seconds since 1970.
    """

    name: str
    folder: Path
    version: str
    made_from: str
    disk_bytes: int
    used_at: float


def kept(root: Path) -> list[Kept]:
    """Everything that lies under the root, most recently used first."""
    found = [_environment(folder) for folder in root.glob("*") if folder.is_dir() and folder.name != WHEELS]
    found += [_wheel(root, folder) for folder in (root / WHEELS).glob("*") if _is_wheel(folder)]
    return sorted((item for item in found if item is not None), key=lambda item: -item.used_at)


def remove(name: str, root: Path, say: Say) -> None:
    """Remove an environment.

    Raises:
        UsageFault: there is none of that name; says which there are.
        HostFault: a process runs in it, or makes it.
    """
    found = {item.name: item for item in kept(root)}
    if name not in found:
        names = ", ".join(item.name for item in found.values() if item.version)
        raise UsageFault(f"no environment named '{name}' in {root}", [f"there are: {names or 'none'}"])
    user = _remove(found[name])
    if user:
        raise HostFault(f"environment '{name}' is in use by {user}")
    say(f"removed {name}: {gb(found[name].disk_bytes)}")


def bound(root: Path, keep_gib: float, spare: str, say: Say) -> None:
    """Remove the least recently used until what is left takes no more than the bound.

    Args:
        root: folder of made environments.
        keep_gib: the bound, GiB.
        spare: environment that stays whatever its size.
        say: receives a line per environment that went, and one when the bound cannot be kept.
    """
    items = kept(root)
    left = sum(item.disk_bytes for item in items)
    for item in reversed(items):
        if left <= keep_gib * GIB:
            return
        if item.name == spare:
            continue
        user = _remove(item)
        if user:
            say(f"kept {item.name}: in use by {user}")
        else:
            left -= item.disk_bytes
            say(f"removed {item.name}, the least recently used: {gb(item.disk_bytes)}")
    if left > keep_gib * GIB:
        say(f"{gb(left)} are left, more than --keep-gib {keep_gib:g} ({gb(int(keep_gib * GIB))})")


def _environment(folder: Path) -> Kept | None:
    built = [path for path in folder.iterdir() if path.is_dir()]
    if not built:
        return None
    size = 0
    made_from = version = ""
    for path in built:
        try:
            marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
            size += int(marker["disk_bytes"])
            made_from = str(marker.get("made_from", made_from))
        except (OSError, ValueError, KeyError, TypeError):
            size += disk_bytes([path])  # what a killed maker left
    with contextlib.suppress(OSError, yaml.YAMLError, AttributeError):
        version = str(yaml.safe_load((folder / ENGINE).read_text(encoding="utf-8")).get("version", ""))
    used = folder / USED if (folder / USED).exists() else folder
    return Kept(folder.name, folder, version, made_from, size, used.stat().st_mtime)


def _is_wheel(folder: Path) -> bool:
    return folder.is_dir() and not folder.name.startswith(".")


def _wheel(root: Path, folder: Path) -> Kept:
    name = folder.relative_to(root).as_posix()
    return Kept(name, folder, "", "", disk_bytes([folder]), folder.stat().st_mtime)


def _remove(item: Kept) -> str | None:
    """Remove it; the user's name, and nothing removed, when it is in use."""
    lock = FileLock(item.folder / HELD)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return "its maker"
    try:
        user = next(_users(item.folder), None)
        if user is not None:
            return user
        # First what says that it is usable. The lock file stays: another maker may wait for it.
        (item.folder / ENGINE).unlink(missing_ok=True)
        for marker in item.folder.glob(f"*/{MARKER}"):
            marker.unlink()
        for path in item.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != HELD:
                path.unlink()
    except OSError as error:
        raise HostFault(f"cannot remove {item.folder}: {error.strerror}") from error
    finally:
        lock.release()
    return None


def _users(folder: Path) -> Iterator[str]:
    """Processes that were started from the folder or have a file of it mapped, as ``pid 17 (python)``."""
    needle = f"{folder.resolve()}/".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes()
            # A server renames its workers: they are known by their libraries.
            if needle in command or needle in (process / "maps").read_bytes():
                yield f"pid {process.name} ({(process / 'comm').read_text().strip()})"
