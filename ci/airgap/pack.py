"""Pack an engine's environment in pieces, whole or as the difference to one that the runner has.

::

    OUT/manifest.json    written last: names, versions, digests of the pieces and of every file
    OUT/lock.txt         what was resolved: every package, also those that are not carried
    OUT/piece-000 ...    one .tar.xz, cut; `cat OUT/piece-* | xz -d | tar t` reads it
    OUT/unpack.py        installs it; needs Python only
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ci.airgap import archive, unpack
from ci.airgap.rules import Rules
from ci.airgap.site import Site, install
from tokgate.environments.lock import Lock, normalised
from tokgate.environments.resolver import Target, resolve
from tokgate.errors import HostFault, UsageFault

RELEASE = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]+\])?==(?P<version>[^\s;]+)$")
VERSION = re.compile(r"^\d+(?:\.\d+)*[A-Za-z0-9.!+_-]*$")
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Environment:
    """A resolved environment that was installed for the runner.

    Attributes:
        name: as in ``sglang-0.5.15.post1``.
        version: of the package that was asked for.
        lock: its whole lock.
        text: the lock's text.
        site: what is carried.
    """

    name: str
    version: str
    lock: Lock
    text: str
    site: Site


def pack(
    requirement: str,
    out: Path,
    rules: Rules,
    piece_bytes: int,
    *,
    base: str | None = None,
    say: Callable[[str], None],
) -> str:
    """Pack an environment and return a table of what it holds.

    Args:
        requirement: ``sglang==VERSION``.
        out: folder of the pieces; must be empty or absent.
        rules: what is left out.
        piece_bytes: size of a piece.
        base: a version that the runner has, or the folder of its pack; only what differs is packed.
        say: receives a line per step.

    Raises:
        UsageFault: the requirement, the base or the folder cannot be used.
        HostFault: resolving, installing or compressing failed.
    """
    if base is not None and not _can_be_base(base):
        raise UsageFault(
            f"--base {base}: no pack at {base}, and no version", ["write for instance --base 0.5.13.post1"]
        )
    if piece_bytes < 1:
        raise UsageFault("--piece-mib must be above 0")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageFault(f"{out} is there already: remove it or choose another --out")
    found = _release(requirement)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".pack-") as scratch:
            reference = _base(base, found["name"], Path(scratch, "base"), rules, say) if base else None
            new = _environment(requirement, Path(scratch, "new"), rules, say)
            old = reference["files"] if reference else {}
            packed = [name for name, digest in new.site.files.items() if old.get(name) != digest]
            size = sum(new.site.sizes[name] for name in packed)
            say(f"compressing {len(packed)} files, {size / MIB:.0f} MiB")
            pieces = archive.write(new.site.folder, packed, out, piece_bytes)
            manifest = _manifest(new, rules, packed, pieces, reference)
            table = _table(new, rules, packed, pieces, reference)
            (out / "lock.txt").write_text(new.text, encoding="utf-8")
    except OSError as error:
        raise HostFault(f"cannot pack into {out}: {error.strerror}") from error
    shutil.copyfile(Path(unpack.__file__), out / "unpack.py")
    (out / unpack.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return table


def _release(requirement: str) -> re.Match[str]:
    found = RELEASE.match(requirement)
    if found is None:
        raise UsageFault(
            f"'{requirement}' is no released version", ["write for instance sglang==0.5.15.post1"]
        )
    return found


def _environment(requirement: str, folder: Path, rules: Rules, say: Callable[[str], None]) -> Environment:
    found = _release(requirement)
    name = normalised(found["name"])
    say(f"resolving {requirement} for CPython {rules.python}, {rules.platform}")
    head = f"{requirement}; CPython {rules.python}, {rules.platform}"
    text = resolve([requirement], Target(rules.python, rules.platform), head=head)
    lock = Lock.parse(text)
    carried = [package for package in lock.versions if rules.carries(package)]
    say(f"installing {len(carried)} of {len(lock.versions)} packages")
    folder.mkdir()
    chosen = Lock.parse(lock.requirements(carried))
    site = install(chosen, rules, folder / "site")
    return Environment(f"{name}-{found['version']}", found["version"], lock, text, site)


def _can_be_base(base: str) -> bool:
    """Whether it is a pack's folder, a version, or NAME==VERSION."""
    return Path(base, unpack.MANIFEST).is_file() or bool(VERSION.match(base) or RELEASE.match(base))


def _base(
    base: str, package: str, folder: Path, rules: Rules, say: Callable[[str], None]
) -> Mapping[str, Any]:
    """Name and files of the base: from its pack where that is given, else made here once more."""
    if Path(base, unpack.MANIFEST).is_file():
        manifest = json.loads(Path(base, unpack.MANIFEST).read_text(encoding="utf-8"))
        return {"name": manifest["name"], "files": manifest["files"]}
    requirement = base if "==" in base else f"{package}=={base}"
    made = _environment(requirement, folder, rules, say)
    return {"name": made.name, "files": dict(made.site.files)}


def _manifest(
    new: Environment,
    rules: Rules,
    packed: list[str],
    pieces: list[archive.Piece],
    reference: Mapping[str, Any] | None,
) -> dict[str, Any]:
    return {
        "schema": 1,
        "name": new.name,
        "version": new.version,
        "python": rules.python,
        "platform": rules.platform,
        "env": dict(rules.env),
        "runner": {
            name: new.lock.versions[name] for name in sorted(rules.runner) if name in new.lock.versions
        },
        "lock_digest": new.lock.digest,
        "pythonpath": list(new.site.pythonpath),
        "base": {"name": reference["name"]} if reference else None,
        "pieces": [asdict(piece) for piece in pieces],
        "packed": sorted(packed),
        "files": dict(new.site.files),
    }


def _table(
    new: Environment,
    rules: Rules,
    packed: list[str],
    pieces: list[archive.Piece],
    reference: Mapping[str, Any] | None,
) -> str:
    """What is in the pack, largest folders first, and what is not."""
    by_folder: dict[str, int] = {}
    for name in packed:
        top = name.partition("/")[0]
        by_folder[top] = by_folder.get(top, 0) + new.site.sizes[name]
    largest = sorted(by_folder.items(), key=lambda item: -item[1])
    rows = [(f"{top}", f"{size / MIB:.1f}") for top, size in largest[:8]]
    rows.append((f"{len(largest[8:])} others", f"{sum(size for _, size in largest[8:]) / MIB:.1f}"))
    rows.append((f"all {len(packed)} files", f"{sum(by_folder.values()) / MIB:.1f}"))
    total = sum(piece.size_bytes for piece in pieces)
    rows.append((f"packed, {len(pieces)} pieces", f"{total / MIB:.1f}"))
    width = max(len(name) for name, _ in rows)
    left = sorted(name for name in new.lock.versions if not rules.carries(name))
    head = f"{new.name}" + (f", difference to {reference['name']}" if reference else "")
    return "\n".join(
        [
            f"{head:<{width}}       MiB",
            *(f"{name:<{width}}  {size:>8}" for name, size in rows),
            f"not carried: {len(left)} packages that the runner has or that are not needed; "
            f"{len(new.site.pruned)} files, {sum(new.site.pruned.values()) / MIB:.0f} MiB",
        ]
    )
