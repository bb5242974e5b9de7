"""Small wheels, made on the spot, and recipes that install them: what the tests make instead of SGLang."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from tokgate.environments.recipe import Recipe

WHEEL = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel(folder: Path, name: str, version: str, code: str = "", requires: str | None = None) -> Path:
    """A pure-Python wheel of one module named like the package."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        f"{name}.py": code.encode(),
        f"{name}-{version}.dist-info/METADATA": metadata.encode(),
        f"{name}-{version}.dist-info/WHEEL": WHEEL,
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}"
        for path, data in files.items()
    ]
    record = f"{name}-{version}.dist-info/RECORD"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, data in files.items():
            archive.writestr(inner, data)
        archive.writestr(record, "\n".join([*rows, f"{record},,"]) + "\n")
    return path


def pinned(*wheels: Path) -> str:
    """Lock text that pins these wheels by hash; several of one package and version are alternatives."""
    hashes: dict[str, list[str]] = {}
    for path in wheels:
        name, version, *_ = path.name.split("-")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        hashes.setdefault(f"{name}=={version.partition('+')[0]}", []).append(digest)
    return "".join(
        " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in digests)]) + "\n"
        for pin, digests in sorted(hashes.items())
    )


def recipe(lock_file: Path, *modules: str) -> Recipe:
    """A recipe of these wheels, with the files of tokgate's own that the CPU engine gets."""
    return Recipe(
        name="small",
        version="0.5.23",
        lock_file=lock_file,
        stand_in=True,
        modules=modules,
        disk_bytes=50_000_000,
        summary="small wheels",
    )
