"""How made environments lie on the disk, and that they are whole.

Under the root, each environment has a folder of its name::

    NAME/engine.yaml       written last; what --engine NAME reads
    NAME/lock.txt          what it holds
    NAME/<lock digest>/    the virtual environment; complete once made.json is in it
    NAME/used              changed when the environment is made or measured
    NAME/.lock             held by the maker

A virtual environment cannot be moved, so it is built in place, in the folder of its lock's digest, and
only the marker says that it is whole. What a killed maker left has no marker and is built anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from filelock import FileLock, Timeout

from tokgate.environments.checksum import Contents, contents
from tokgate.environments.lock import Lock
from tokgate.errors import HostFault

Say = Callable[[str], None]
ENGINE, LOCK, MARKER, USED, HELD = "engine.yaml", "lock.txt", "made.json", "used", ".lock"
# Present in a venv without being in the lock.
SEEDS = frozenset({"pip", "setuptools"})


def held(folder: Path, say: Say) -> FileLock:
    """The lock of an environment's makers, once it is ours."""
    path = folder / HELD
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another process is making this environment (it holds {path}); waiting for it")
        lock.acquire()
    return lock


def site_packages(environment: Path) -> Path:
    """Where an environment's packages lie."""
    found = sorted(environment.glob("lib/python3.*/site-packages"))
    return found[0] if found else environment / "lib" / "site-packages"


def matching(name: str, lock: Lock, found: Contents, brought_along: tuple[str, ...] = ()) -> Contents:
    """Every package of the lock in its version, every recorded file there, nothing unknown.

    Args:
        name: the environment's, for messages.
        lock: what should be there.
        found: what is there.
        brought_along: beginnings of names of packages that may be there without being in the lock.

    Raises:
        HostFault: it is not so; lists what differs.
    """
    faults = [
        f"  {package}: {found.versions.get(package, 'absent')}, locked {version}"
        for package, version in lock.versions.items()
        # A local version (torch 2.13.0+cpu) is the locked one in another build.
        if version not in _spellings(found.versions.get(package, ""))
    ]
    known = {*lock.versions, *SEEDS}
    faults += [
        f"  {package} {version}: not in the lock"
        for package, version in found.versions.items()
        if package not in known and not package.startswith(brought_along or ("\0",))
    ]
    faults += [f"  {line}" for line in found.damaged[:10]]
    if faults:
        raise HostFault(f"the environment '{name}' is not what its lock says", faults)
    return found


def _spellings(version: str) -> tuple[str, str]:
    return version, version.partition("+")[0]


def unaltered(environment: Path, command: str) -> None:
    """What lies there is what was made: same packages, same files, same sizes.

    Args:
        environment: the virtual environment.
        command: builds it anew, for the message.

    Raises:
        HostFault: it is not.
    """
    try:
        recorded = json.loads((environment / MARKER).read_text(encoding="utf-8"))["contents_digest"]
    except (ValueError, KeyError, TypeError):
        recorded = None
    found = contents(site_packages(environment))
    if found.damaged or found.digest != recorded:
        changed = [f"  {line}" for line in found.damaged[:10]] or [
            "  packages were added, removed or changed"
        ]
        raise HostFault(
            f"the environment in {environment} was altered after it was made",
            [*changed, f"build it anew with: {command}"],
        )


def mark(
    environment: Path, name: str, lock: Lock, found: Contents, wall_s: float, facts: dict[str, str]
) -> int:
    """Write that the environment is whole, and return the space that it takes, bytes."""
    size = disk_bytes([environment])
    marker = {
        "name": name,
        **facts,
        "lock_digest": lock.digest,
        "contents_digest": found.digest,
        "disk_bytes": size,
        "build_wall_s": round(wall_s, 1),
        "versions": dict(sorted(found.versions.items())),
    }
    write(environment / MARKER, json.dumps(marker, indent=1) + "\n")
    return size


def write(path: Path, text: str) -> None:
    """Replace a file's content so that a reader sees the old or the new, never a part."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def touch_used(folder: Path) -> None:
    """Note that an environment is in use now. A folder that cannot be written is in use all the same."""
    try:
        (folder / USED).touch()
    except OSError:
        return


def disk_bytes(folders: Iterable[Path]) -> int:
    """Space that folders take, bytes; a file that several names share counts once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue
            if (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                total += found.st_size
    return total


def gb(size_bytes: int) -> str:
    """A size in words."""
    return f"{size_bytes / 1e9:.1f} GB"
