"""Make the environment of an engine that is asked for by its version, a commit, a wheel or a folder."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from tokgate.environments import installer, store
from tokgate.environments.checksum import contents
from tokgate.environments.lock import Lock, normalised
from tokgate.environments.resolver import Target, resolve
from tokgate.environments.sources import Built, wheel_of
from tokgate.environments.store import LOCK, MARKER, Say, held, site_packages, write
from tokgate.environments.wanted import PACKAGE, Wanted, slug
from tokgate.environments.wheel import LocalWheel
from tokgate.errors import HostFault

# Without the user's own site-packages, what the lock pins is what runs.
ENVIRONMENT = {"PYTHONNOUSERSITE": "1"}


@dataclass(frozen=True, slots=True)
class MadeEngine:
    """A usable environment of an engine.

    Attributes:
        name: ``--engine`` takes it.
        version: of SGLang.
        engine_file: its ``engine.yaml``.
        lock_file: what it holds.
        environment: folder of the virtual environment.
        built: whether this call built it; False when it was there already.
        wall_s: seconds that this call took.
    """

    name: str
    version: str
    engine_file: Path
    lock_file: Path
    environment: Path
    built: bool
    wall_s: float


@dataclass(frozen=True, slots=True)
class Resolved:
    """What is to be installed.

    Attributes:
        name: of the environment.
        package: that was asked for, normalised.
        text: of the lock.
        wheel: of the package, when it does not come from the index.
    """

    name: str
    package: str
    text: str
    wheel: LocalWheel | None

    @property
    def lock(self) -> Lock:
        """The lock, parsed."""
        return Lock.parse(self.text)

    @property
    def version(self) -> str:
        """SGLang's version where the lock has SGLang, else that of the package."""
        versions = self.lock.versions
        return versions.get(PACKAGE, versions[self.package])


def resolved(wanted: Wanted, root: Path, say: Say, python: str, *, anew: bool = False) -> Resolved:
    """Resolve what is wanted to a lock; the lock of an environment that is there counts, unless ``anew``.

    Args:
        wanted: the request.
        root: folder of made environments; built wheels are kept below it, nothing else is written.
        say: receives a line per step.
        python: version of CPython, as in ``3.12``.
        anew: ask the resolver even if there is a lock.

    Raises:
        UsageFault: the commit, wheel or folder cannot be used.
        HostFault: git, the build or the resolver failed; with its last lines.
    """
    target = Target(python)
    built = None if wanted.source == "release" else wheel_of(wanted, root, say)
    name = wanted.name if built is None else _name_of_build(built)
    package = wanted.package if built is None else built.wheel.name
    kept = root / name / LOCK
    head = _head(wanted, built, python)
    if not anew and kept.is_file():
        text = kept.read_text(encoding="utf-8")
        if text.partition("\n")[0] == f"# {head}":
            return Resolved(name, package, text, built.wheel if built else None)
    say(f"resolving {wanted.text} for CPython {python}")
    if built is None:
        requirement = f"{wanted.package}{wanted.extras}=={wanted.version}"
    else:
        requirement = f"{package}{wanted.extras} @ {built.wheel.path.absolute().as_uri()}"
    wheel = built.wheel if built else None
    return Resolved(name, package, resolve([requirement], target, wheel=wheel, head=head), wheel)


def make(
    wanted: Wanted, root: Path, say: Say, *, python: str | None = None, rebuild: bool = False
) -> MadeEngine:
    """Make an engine's environment, or check and return the one that is there. Safe in several processes.

    Args:
        wanted: the request.
        root: folder of made environments.
        say: receives a line per step.
        python: version of CPython, as in ``3.12``; by default that of the running one.
        rebuild: resolve and build anew even if one is there.

    Raises:
        UsageFault: the commit, wheel or folder cannot be used.
        HostFault: git, a build, the resolver or an installer failed, with its last lines; or what is there
            was altered.
    """
    began = time.monotonic()
    try:
        root.mkdir(parents=True, exist_ok=True)
        found = resolved(wanted, root, say, python or installer.running(), anew=rebuild)
        folder = root / found.name
        folder.mkdir(exist_ok=True)
        with held(folder, say):
            environment = folder / found.lock.digest[:12]
            built = rebuild or not (environment / MARKER).is_file()
            if built:
                _build(found, wanted, environment, python or installer.running(), say)
            else:
                store.unaltered(environment, f"tokgate env make '{wanted.text}' --rebuild")
            engine_file = _publish(found, wanted, folder, environment)
    except OSError as error:
        raise HostFault(f"cannot make '{wanted.text}' in {root}: {error.strerror}") from error
    return MadeEngine(
        found.name, found.version, engine_file, folder / LOCK, environment, built, time.monotonic() - began
    )


def _name_of_build(built: Built) -> str:
    return slug(f"{built.wheel.name}-{built.wheel.version}-{built.key}")


def _head(wanted: Wanted, built: Built | None, python: str) -> str:
    """First line of the lock: what it was made from. No address, no path: it goes into results."""
    asked = wanted.text if built is None else f"{built.wheel.name}{wanted.extras} of {built.origin}"
    return f"{asked}; CPython {python}"


def _build(found: Resolved, wanted: Wanted, environment: Path, python: str, say: Say) -> None:
    if environment.exists():
        say(f"removing what is in {environment}")
        shutil.rmtree(environment)
    began = time.monotonic()
    lock = found.lock
    say(f"installing {len(lock.versions)} packages into {environment}")
    try:
        installer.fill(environment, lock, python, found.wheel)
        there = store.matching(found.name, lock, contents(site_packages(environment)))
    except HostFault:
        # Half an environment may be many GB, and nobody could use it.
        shutil.rmtree(environment, ignore_errors=True)
        raise
    wall_s = time.monotonic() - began
    size = store.mark(environment, found.name, lock, there, wall_s, {"made_from": wanted.text})
    say(f"made: {len(there.versions)} packages, {store.gb(size)}, {wall_s:.0f} s")


def _publish(found: Resolved, wanted: Wanted, folder: Path, environment: Path) -> Path:
    """Write the lock and, last, ``engine.yaml``; then drop what an older lock left and nobody runs."""
    write(folder / LOCK, found.text)
    engine = {
        "kind": "gpu",
        "version": found.version,
        "python": str(environment.absolute() / "bin" / "python"),
        "env": dict(ENVIRONMENT),
        "lock": LOCK,
        "lock_digest": found.lock.digest,
    }
    engine_file = folder / store.ENGINE
    head = f"# Written by: tokgate env make '{wanted.text}'\n"
    write(engine_file, head + yaml.safe_dump(engine, sort_keys=False, width=1000))
    store.touch_used(folder)
    return engine_file


def versions(engine_file_lock: Path) -> dict[str, str]:
    """Package to version, as a kept lock says: what moved in the stack between two engines.

    Raises:
        ValueError: it is no lock.
    """
    lock = Lock.parse(engine_file_lock.read_text(encoding="utf-8"))
    return {normalised(name): version for name, version in lock.versions.items()}
