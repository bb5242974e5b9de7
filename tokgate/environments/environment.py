"""Make an environment, find a made one, and check that it still is what was made.

Under the root, each environment has a folder of its name::

    cpu/engine.yaml              written last; what --engine cpu reads
    cpu/<lock digest>/           the virtual environment; complete once made.json is in it
    cpu/tokgate-<digest>/        the files of tokgate's own that run in the engine
    cpu/.lock                    held by the maker

A virtual environment cannot be moved, so it is built in place, in the folder of its lock's digest, and
only the marker says that it is whole. What a killed maker left has no marker and is built anew.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml
from filelock import FileLock, Timeout

from tokgate.config.engine import load_engine
from tokgate.environments import installer
from tokgate.environments.checksum import Contents, contents
from tokgate.environments.recipe import CPU_ENVIRONMENT, KERNELS, LAUNCHER, RECIPES, Recipe
from tokgate.errors import HostFault, UsageFault

Say = Callable[[str], None]
MARKER = "made.json"
GLIBC = (2, 34)  # of the oldest system that SGLang's wheels run on
# Present in a venv without being in the lock.
SEEDS = frozenset({"pip", "setuptools"})


@dataclass(frozen=True, slots=True)
class Made:
    """A usable environment.

    Attributes:
        recipe: what it was made from.
        engine_file: its ``engine.yaml``.
        environment: folder of the virtual environment.
        built: whether this call built it; False when it was there already.
        wall_s: seconds that this call took.
    """

    recipe: Recipe
    engine_file: Path
    environment: Path
    built: bool
    wall_s: float


def recipe_named(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        UsageFault: there is none; says which there are.
    """
    if name not in RECIPES:
        raise UsageFault(f"no environment named '{name}' to make", [f"there are: {', '.join(RECIPES)}"])
    return RECIPES[name]


def make(recipe: Recipe, root: Path, say: Say, *, rebuild: bool = False) -> Made:
    """Make an environment, or check and return the one that is there. Safe to call from several processes.

    Args:
        root: folder of made environments.
        say: receives a line per step.
        rebuild: build anew even if one is there.

    Raises:
        HostFault: the machine cannot hold it, an installer failed, or what is there was altered.
    """
    began = time.monotonic()
    folder = root / recipe.name
    environment = folder / recipe.lock.digest[:12]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _held(folder / ".lock", say):
            built = rebuild or not (environment / MARKER).is_file()
            if built:
                _fit(recipe, folder)
                _build(recipe, environment, say)
            else:
                _unaltered(recipe, environment)
            engine_file = _publish(recipe, folder, environment)
    except OSError as error:
        raise HostFault(f"cannot make '{recipe.name}' in {folder}: {error.strerror}") from error
    return Made(recipe, engine_file, environment, built, time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class Standing:
    """An environment that was made before.

    Attributes:
        disk_bytes: space that it takes.
        current: whether it is what :func:`make` would make now; False after a change of the lock or of
            tokgate's own files in it.
    """

    disk_bytes: int
    current: bool


def standing(recipe: Recipe, root: Path) -> Standing | None:
    """The environment in use under the root; None when none was made.

    Raises:
        ConfigFault, HostFault: its files cannot be read.
    """
    engine_file = root / recipe.name / "engine.yaml"
    if not engine_file.is_file():
        return None
    engine = load_engine(engine_file)
    marker = Path(engine.python).parent.parent / MARKER
    try:
        disk_bytes = int(json.loads(marker.read_text(encoding="utf-8"))["disk_bytes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HostFault(
            f"environment '{recipe.name}' is damaged: {marker} cannot be read",
            [f"build it anew with: tokgate env make {recipe.name} --rebuild"],
        ) from error
    return Standing(disk_bytes, engine.lock_digest == recipe.digest)


def site_packages(environment: Path) -> Path:
    """Where an environment's packages lie."""
    return environment / "lib" / "python3.11" / "site-packages"


def _held(path: Path, say: Say) -> FileLock:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another process is making this environment (it holds {path}); waiting for it")
        lock.acquire()
    return lock


def _fit(recipe: Recipe, folder: Path) -> None:
    """Whether this machine can hold and run the environment: said before minutes of installing."""
    system = f"{platform.system()} {platform.machine()}"
    if system != "Linux x86_64":
        raise HostFault(f"environment '{recipe.name}' is made for Linux x86_64; this is {system}")
    library, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    if library == "glibc" and numbers < GLIBC:
        raise HostFault(f"SGLang's wheels need glibc {GLIBC[0]}.{GLIBC[1]} or later; this is {version}")
    free = shutil.disk_usage(folder).free
    if free < recipe.disk_bytes:
        raise HostFault(
            f"environment '{recipe.name}' takes {_gb(recipe.disk_bytes)}; {folder} has {_gb(free)} free",
            ["choose another place with --root, or with TOKGATE_HOME"],
        )


def _build(recipe: Recipe, environment: Path, say: Say) -> None:
    if environment.exists():
        say(f"removing what is in {environment}")
        shutil.rmtree(environment)
    began = time.monotonic()
    say(f"{recipe.name}: {recipe.summary}; about {_gb(recipe.disk_bytes)} and 2 minutes, into {environment}")
    lock = recipe.lock
    installer.create(environment)
    installer.install(environment, lock, say)
    say(f"checking what is installed ({time.monotonic() - began:.0f} s so far)")
    found = _matching(recipe, contents(site_packages(environment)))
    _imports(recipe, environment)
    disk_bytes = _disk_bytes(environment)
    wall_s = time.monotonic() - began
    marker = {
        "name": recipe.name,
        "lock_digest": lock.digest,
        "contents_digest": found.digest,
        "disk_bytes": disk_bytes,
        "build_wall_s": round(wall_s, 1),
        "versions": dict(sorted(found.versions.items())),
    }
    _write(environment / MARKER, json.dumps(marker, indent=1) + "\n")
    size, count = _gb(disk_bytes), len(found.versions)
    say(f"made: {count} packages, {size}, {wall_s:.0f} s, checksum {found.digest[:12]}")


def _matching(recipe: Recipe, found: Contents) -> Contents:
    """Every package of the lock in its version, every recorded file there, nothing unknown."""
    locked = recipe.lock.versions
    faults = [
        f"  {name}: {found.versions.get(name, 'absent')}, locked {version}"
        for name, version in locked.items()
        if found.versions.get(name, "").partition("+")[0] != version
    ]
    # A CUDA build of torch brings its libraries; nothing else may come along.
    known = {*locked, *SEEDS}
    faults += [
        f"  {name} {version}: not in the lock"
        for name, version in found.versions.items()
        if name not in known and not name.startswith(("nvidia-", "cuda-"))
    ]
    faults += [f"  {line}" for line in found.damaged[:10]]
    if faults:
        raise HostFault(f"the environment '{recipe.name}' is not what its lock says", faults)
    return found


def _imports(recipe: Recipe, environment: Path) -> None:
    """What the engine needs can be imported there, with the environment variables that it will have."""
    code = "; ".join(["import launch_server", *(f"import {module}" for module in recipe.modules)])
    path = {"PYTHONPATH": str(KERNELS), "PYTHONDONTWRITEBYTECODE": "1"}
    installer.inside(environment, code, {**CPU_ENVIRONMENT, **path})


def _unaltered(recipe: Recipe, environment: Path) -> None:
    """What lies there is what was made: same packages, same files, same sizes."""
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
            [*changed, f"build it anew with: tokgate env make {recipe.name} --rebuild"],
        )


def _publish(recipe: Recipe, folder: Path, environment: Path) -> Path:
    """Put tokgate's own files beside the environment and write ``engine.yaml``, last and at once."""
    own = folder / f"tokgate-{recipe.sources_digest[:12]}"
    for path in recipe.sources():
        (own / path).parent.mkdir(parents=True, exist_ok=True)
        _write(own / path, (KERNELS / path).read_text(encoding="utf-8"))
    engine = {
        "kind": "cpu",
        "version": recipe.version,
        "python": str(environment.absolute() / "bin" / "python"),
        "pythonpath": [str(own.absolute())],
        "launcher": [str(own.absolute() / LAUNCHER)],
        "env": dict(CPU_ENVIRONMENT),
        "lock_digest": recipe.digest,
    }
    engine_file = folder / "engine.yaml"
    head = f"# Written by: tokgate env make {recipe.name}\n"
    _write(engine_file, head + yaml.safe_dump(engine, sort_keys=False, width=1000))
    return engine_file


def _write(path: Path, text: str) -> None:
    """Replace a file's content so that a reader sees the old or the new, never a part."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _disk_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
