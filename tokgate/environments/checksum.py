"""What an environment holds, as a checksum, from the RECORD files that the installers leave."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokgate.environments.lock import normalised


@dataclass(frozen=True, slots=True)
class Contents:
    """The installed packages of one environment.

    Attributes:
        versions: package name, normalised, to version.
        digest: SHA-256 over every package's name, version and recorded files (path, SHA-256, size).
        damaged: files that are missing or whose size no package recorded, as ``path: reason``.
        file_bytes: recorded size of all files, bytes.
    """

    versions: dict[str, str]
    digest: str
    damaged: tuple[str, ...]
    file_bytes: int


def contents(site_packages: Path) -> Contents:
    """Read an environment's packages. Takes about 0.3 s for the CPU engine's 30 000 files.

    Compiled bytecode is left out: Python writes it as it pleases. So is the list of files that an
    installer generates (console scripts, its own notes), whose content names the environment's path.

    Some packages bring a file of the same path (``build_backend.py``, ``tests/__init__.py``): whichever came
    last is there, and as good as the other.
    """
    versions: dict[str, str] = {}
    total = hashlib.sha256()
    damaged: list[str] = []
    recorded: dict[str, list[int]] = {}
    file_bytes = 0
    for info in sorted(site_packages.glob("*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").rpartition("-")
        versions[normalised(name)] = version
        record = info / "RECORD"
        total.update(f"{normalised(name)} {version}\n".encode())
        if not record.is_file():
            damaged.append(f"{record.relative_to(site_packages)}: missing")
            continue
        with record.open(newline="", encoding="utf-8") as stream:
            rows = sorted(row for row in csv.reader(stream) if len(row) == 3)
        for path, checksum, size in rows:
            if not size or path.endswith(".pyc"):
                continue
            file_bytes += int(size)
            if not path.startswith(("../", f"{info.name}/")):
                total.update(f"{path} {checksum} {size}\n".encode())
            recorded.setdefault(path, []).append(int(size))
    for path, sizes in recorded.items():
        reason = _fault(site_packages / path, sizes)
        if reason:
            damaged.append(f"{path}: {reason}")
    return Contents(versions, total.hexdigest(), tuple(damaged), file_bytes)


def _fault(path: Path, sizes: Sequence[int]) -> str | None:
    try:
        found = path.stat().st_size
    except OSError as error:
        return error.strerror or "missing"
    return None if found in sizes else f"{found} bytes, recorded {' or '.join(map(str, sizes))}"
