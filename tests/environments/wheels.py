"""Small wheels, made on the spot, and recipes that install them: what the tests make instead of SGLang."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tokgate.environments.recipe import Recipe

WHEEL = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel(
    folder: Path,
    name: str,
    version: str,
    code: str = "",
    requires: str | None = None,
    *,
    files: Mapping[str, str] | None = None,
) -> Path:
    """A pure-Python wheel of one module named like the package, and of further files."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    every = {
        f"{name}.py": code.encode(),
        **{path: text.encode() for path, text in (files or {}).items()},
        f"{name}-{version}.dist-info/METADATA": metadata.encode(),
        f"{name}-{version}.dist-info/WHEEL": WHEEL,
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}"
        for path, data in every.items()
    ]
    record = f"{name}-{version}.dist-info/RECORD"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, data in every.items():
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


def project(folder: Path, name: str, version: str, code: str = "", requires: str = "") -> Path:
    """A folder that builds into such a wheel; its build backend is its own, so that it needs no index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "backend.py").write_text(BACKEND)
    (folder / "project.txt").write_text(f"{name} {version} {requires}")
    (folder / "code.txt").write_text(code)
    return folder


BACKEND = """
import base64, hashlib, pathlib, zipfile


def build_wheel(directory, config_settings=None, metadata_directory=None):
    name, version, *requires = pathlib.Path("project.txt").read_text().split()
    pathlib.Path("droppings").touch()
    metadata = f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n"
    metadata += "".join(f"Requires-Dist: {line}\\n" for line in requires)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": pathlib.Path("code.txt").read_text(),
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    record = f"{info}/RECORD"
    rows = []
    wheel = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory, wheel), "w") as archive:
        for path, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
            archive.writestr(path, text)
            rows.append(f"{path},sha256={digest},{len(text.encode())}")
        archive.writestr(record, "\\n".join([*rows, f"{record},,"]) + "\\n")
    return wheel
"""
