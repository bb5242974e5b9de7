"""The folder of packages that a pack carries: installed for the runner, pruned, and listed."""

from __future__ import annotations

import base64
import csv
import hashlib
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.airgap.rules import Rules
from tokgate.environments import installer
from tokgate.environments.lock import Lock
from tokgate.environments.wheel import LocalWheel
from tokgate.errors import HostFault


@dataclass(frozen=True, slots=True)
class Site:
    """A folder of packages, ready to be packed.

    Attributes:
        folder: where it lies.
        files: path in it to its SHA-256 (hexadecimal).
        sizes: path to size, bytes.
        pythonpath: folders below it that its ``.pth`` files put on the path; Python reads these files in
            site-packages only, so the engine file must name what they say.
        pruned: path to size of what was left out.
    """

    folder: Path
    files: Mapping[str, str]
    sizes: Mapping[str, int]
    pythonpath: tuple[str, ...]
    pruned: Mapping[str, int]


def install(lock: Lock, rules: Rules, folder: Path, wheel: LocalWheel | None = None) -> Site:
    """Install the packages of a lock for the runner's Python and platform, prune and list them.

    Raises:
        HostFault: there is no uv, or it failed; with its last lines.
    """
    uv = installer.uv()
    if uv is None:
        raise HostFault("packing needs uv, which installs for another Python", ["pip install uv"])
    wanted = folder.with_name("carried.txt")
    names = [name for name in lock.blocks if wheel is None or name != wheel.name]
    wanted.write_text(lock.requirements(names), encoding="utf-8")
    command = [
        *(uv, "pip", "install", "--target", str(folder), "--no-deps", "--no-build"),
        *("--python-version", rules.python, "--python-platform", rules.platform),
        # A hard link into uv's cache would be stripped there too.
        *("--link-mode", "copy"),
    ]
    if names:
        installer.run([*command, "--require-hashes", "--requirement", str(wanted)], "installing by uv")
    if wheel is not None:
        installer.run([*command, str(wheel.path)], "installing the wheel by uv")
    pruned = _prune(folder, rules)
    _strip(folder, rules.strip_from_bytes)
    _settle_records(folder)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names_ = [path.relative_to(folder).as_posix() for path in paths]
    return Site(
        folder,
        {name: _sha256(path) for name, path in zip(names_, paths, strict=True)},
        {name: path.stat().st_size for name, path in zip(names_, paths, strict=True)},
        _pythonpath(folder),
        pruned,
    )


def _prune(folder: Path, rules: Rules) -> dict[str, int]:
    pruned: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        # What an installer leaves about itself is not of the packages, and differs from run to run.
        own = name in {".lock", "CACHEDIR.TAG"} or path.name in {"uv_cache.json", "INSTALLER", "REQUESTED"}
        if path.is_file() and (own or rules.prunes(name)):
            if not own:
                pruned[name] = path.stat().st_size
            path.unlink()
    return pruned


def _strip(folder: Path, from_bytes: int) -> None:
    program = shutil.which("strip")
    if program is None:
        return
    for path in sorted(folder.rglob("*.so*")):
        if path.is_file() and path.stat().st_size >= from_bytes:
            # One that cannot be stripped is carried as it is.
            subprocess.run([program, "--strip-unneeded", str(path)], check=False, capture_output=True)


def _settle_records(folder: Path) -> None:
    """Let each RECORD say what is carried, so that a later check of the environment finds it whole."""
    for record in sorted(folder.glob("*.dist-info/RECORD")):
        with record.open(newline="", encoding="utf-8") as stream:
            rows = [row for row in csv.reader(stream) if len(row) == 3]
        settled = []
        for name, checksum, size in rows:
            path = folder / name
            if not path.is_file():
                continue
            if checksum:
                digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
                checksum, size = f"sha256={digest.rstrip('=')}", str(path.stat().st_size)
            settled.append((name, checksum, size))
        with record.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, lineterminator="\n").writerows(sorted(settled))


def _pythonpath(folder: Path) -> tuple[str, ...]:
    found: list[str] = []
    for pth in sorted(folder.glob("*.pth")):
        for line in pth.read_text(encoding="utf-8").splitlines():
            name = line.strip()
            if name and not name.startswith(("#", "import ", "import\t")) and (folder / name).is_dir():
                found.append(name)
    return tuple(found)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
