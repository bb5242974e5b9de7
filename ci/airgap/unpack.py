"""Install a pack on a runner without network. Needs Python's standard library only.

``python3 PACK/unpack.py PACK --to DIR`` does it without a clone of the repository: a pack holds a copy
of this file. Every piece is checked before anything is written, every file before the engine file is.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
VERSIONS = """
import importlib.metadata, json, sys
found = {"python": "%d.%d" % sys.version_info[:2]}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        found[name] = "absent"
print(json.dumps(found))
"""


class Refused(Exception):
    """The pack, the base or the runner is not what the manifest says."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``unpack``."""
    parser.add_argument("pack", type=Path, help="folder of the pieces")
    parser.add_argument("--to", type=Path, required=True, help="folder to install into, made")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the runner (default: this)")
    parser.add_argument("--base", type=Path, help="folder of the installed base, for a pack of differences")
    parser.set_defaults(action=_command)


def unpack(pack: Path, to: Path, python: str, base: Path | None = None) -> Path:
    """Install a pack and return its engine file.

    Args:
        pack: folder of the pieces and the manifest.
        to: folder of the engine; appears whole or not at all.
        python: interpreter that will run the engine.
        base: folder that an earlier ``unpack`` made, for a pack of differences; by default beside ``to``,
            under the base's name.

    Raises:
        Refused: what is there is not what the manifest says; nothing was installed.
    """
    manifest = _manifest(pack)
    to = to.absolute()
    if (to / MANIFEST).is_file() and _manifest(to) == manifest:
        return to / "engine.yaml"
    if to.exists():
        raise Refused(f"{to} is there already, and is not of this pack: remove it or choose another folder")
    _check_runner(manifest, python)
    _check_pieces(pack, manifest)
    part = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        site = part / "site"
        site.mkdir(parents=True)
        if manifest["base"] is not None:
            folder = base or to.parent / manifest["base"]["name"]
            _lay_base(folder / "site", site, manifest)
        _extract(pack, manifest, site)
        _check_files(site, manifest)
        shutil.copyfile(pack / "lock.txt", part / "lock.txt")
        shutil.copyfile(pack / MANIFEST, part / MANIFEST)
        (part / "engine.yaml").write_text(_engine(manifest, to, python), encoding="utf-8")
        part.rename(to)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    _compile(to / "site", python)
    return to / "engine.yaml"


def _manifest(folder: Path) -> Any:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"{folder} is no pack: {MANIFEST}: {error.strerror}") from error
    except ValueError as error:
        raise Refused(f"{folder / MANIFEST} is damaged: {error}") from error
    if manifest.get("schema") != 1:
        raise Refused(f"{folder / MANIFEST} has schema {manifest.get('schema')}; this unpacks schema 1")
    return manifest


def _check_runner(manifest: Any, python: str) -> None:
    """The interpreter and the packages that the pack counts on are there, in the right versions."""
    wanted = {"python": manifest["python"], **manifest["runner"]}
    # Isolated: what PYTHONPATH shows here need not be there when the engine runs.
    command = [python, "-I", "-c", VERSIONS, *manifest["runner"]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Refused(f"{python} does not run: {error}") from error
    found = json.loads(done.stdout)
    wrong = [
        f"{name} {found[name]}, not {version}" for name, version in wanted.items() if found[name] != version
    ]
    if wrong:
        raise Refused(f"this pack is not for {python}: it has {'; '.join(wrong)}")


def _check_pieces(pack: Path, manifest: Any) -> None:
    for piece in manifest["pieces"]:
        path = pack / piece["name"]
        if not path.is_file():
            raise Refused(f"piece {piece['name']} of {len(manifest['pieces'])} is missing in {pack}")
        if _sha256(path) != piece["sha256"]:
            raise Refused(f"piece {piece['name']} is damaged: its SHA-256 is not the manifest's")


def _lay_base(base: Path, site: Path, manifest: Any) -> None:
    """Link, or else copy, every file of the base that this version has too."""
    if not base.is_dir():
        raise Refused(
            f"this pack is the difference to {manifest['base']['name']}: no {base}; name it by --base"
        )
    packed = set(manifest["packed"])
    for name in manifest["files"]:
        if name in packed:
            continue
        source, target = base / name, site / name
        if not source.is_file():
            raise Refused(f"{base} is not the base of this pack: it has no {name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)


class _Joined(io.RawIOBase):
    """The pieces, read as one file."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._rest = list(paths)
        self._stream = self._rest.pop(0).open("rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            count = self._stream.readinto(buffer)
            if count or not self._rest:
                return count
            self._stream.close()
            self._stream = self._rest.pop(0).open("rb")

    def close(self) -> None:
        self._stream.close()
        super().close()


def _extract(pack: Path, manifest: Any, site: Path) -> None:
    pieces = [pack / piece["name"] for piece in manifest["pieces"]]
    if not pieces:
        return
    packed = set(manifest["packed"])
    with _Joined(pieces) as stream, tarfile.open(fileobj=stream, mode="r|xz") as archive:
        for member in archive:
            # Paths come from the manifest, whose digests are checked: nothing else is written.
            if not member.isfile() or member.name not in packed:
                raise Refused(f"the archive holds {member.name}, which the manifest does not name")
            target = site / member.name
            if site not in target.resolve().parents:
                raise Refused(f"the archive holds {member.name}, which is outside of the folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            if content is None:
                raise Refused(f"the archive holds no content of {member.name}")
            with target.open("wb") as output:
                shutil.copyfileobj(content, output, 2**20)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)


def _check_files(site: Path, manifest: Any) -> None:
    for name, digest in manifest["files"].items():
        path = site / name
        if not path.is_file() or _sha256(path) != digest:
            whose = "the pack's" if name in set(manifest["packed"]) else "the base's"
            raise Refused(f"{name}, {whose}, is not what the manifest says")


def _compile(site: Path, python: str) -> None:
    """Byte code beside the sources: without it the first servers compile 10,000 modules before they start."""
    command = [python, "-I", "-m", "compileall", "-q", "-j", "0", str(site)]
    # Templates and sources for other Pythons do not compile; no server imports them.
    subprocess.run(command, capture_output=True, check=False)


def _engine(manifest: Any, to: Path, python: str) -> str:
    """The engine file: YAML, of which JSON values are a part."""
    site = to / "site"
    engine = {
        "kind": "gpu",
        "version": manifest["version"],
        "python": python,
        "pythonpath": [str(site), *(str(site / name) for name in manifest["pythonpath"])],
        "env": manifest["env"],
        "lock": "lock.txt",
        "lock_digest": manifest["lock_digest"],
    }
    head = f"# Written by ci.airgap unpack: {manifest['name']}\n"
    return head + "".join(f"{key}: {json.dumps(value)}\n" for key, value in engine.items())


def _sha256(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(2**20):
            total.update(block)
    return total.hexdigest()


def _command(options: argparse.Namespace) -> int:
    if not (options.pack / MANIFEST).is_file():
        print(f"unpack: no pack at {options.pack}: it has no {MANIFEST}", file=sys.stderr)
        return 2
    try:
        engine = unpack(options.pack, options.to, options.python, options.base)
    except Refused as refusal:
        print(f"unpack: {refusal}", file=sys.stderr)
        return 3
    print(f"{engine}\nuse it with: --engine {engine}")
    return 0


def main() -> int:
    """Run as a script of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    options = parser.parse_args()
    return int(options.action(options))


if __name__ == "__main__":
    sys.exit(main())
