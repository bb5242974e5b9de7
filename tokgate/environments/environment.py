"""Make one of the built-in environments, and tell whether it is there.

Its folder is as :mod:`tokgate.environments.store` says, and holds one more: ``tokgate-<digest>/``, the
files of tokgate's own that run in the engine.
"""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from tokgate.config.engine import load_engine
from tokgate.environments import installer, store
from tokgate.environments.checksum import Contents, contents
from tokgate.environments.recipe import CPU_ENVIRONMENT, KERNELS, LAUNCHER, Recipe
from tokgate.environments.store import MARKER, site_packages
from tokgate.errors import HostFault

Say = Callable[[str], None]
PYTHON = "3.11"  # the built-in locks are resolved for it
GLIBC = (2, 34)  # of the oldest system that SGLang's wheels run on


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
        with store.held(folder, say):
            built = rebuild or not (environment / MARKER).is_file()
            if built:
                _fit(recipe, folder)
                _build(recipe, environment, say)
            else:
                store.unaltered(environment, _rebuild(recipe))
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
            [f"build it anew with: {_rebuild(recipe)}"],
        ) from error
    return Standing(disk_bytes, engine.lock_digest == recipe.digest)


def _rebuild(recipe: Recipe) -> str:
    return f"tokgate env make {recipe.name} --rebuild"


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
            f"environment '{recipe.name}' takes {store.gb(recipe.disk_bytes)}; {folder} has {store.gb(free)} free",
            ["choose another place with --root, or with TOKGATE_HOME"],
        )


def _build(recipe: Recipe, environment: Path, say: Say) -> None:
    if environment.exists():
        say(f"removing what is in {environment}")
        shutil.rmtree(environment)
    began = time.monotonic()
    say(
        f"{recipe.name}: {recipe.summary}; about {store.gb(recipe.disk_bytes)} and 2 minutes, into {environment}"
    )
    lock = recipe.lock
    installer.create(environment, PYTHON)
    installer.install(environment, lock, say)
    say(f"checking what is installed ({time.monotonic() - began:.0f} s so far)")
    found = _matching(recipe, contents(site_packages(environment)))
    _imports(recipe, environment)
    wall_s = time.monotonic() - began
    disk_bytes = store.mark(environment, recipe.name, lock, found, wall_s, {})
    size, count = store.gb(disk_bytes), len(found.versions)
    say(f"made: {count} packages, {size}, {wall_s:.0f} s, checksum {found.digest[:12]}")


def _matching(recipe: Recipe, found: Contents) -> Contents:
    # A CUDA build of torch brings its libraries; nothing else may come along.
    return store.matching(recipe.name, recipe.lock, found, ("nvidia-", "cuda-"))


def _imports(recipe: Recipe, environment: Path) -> None:
    """What the engine needs can be imported there, with the environment variables that it will have."""
    code = "; ".join(["import launch_server", *(f"import {module}" for module in recipe.modules)])
    path = {"PYTHONPATH": str(KERNELS), "PYTHONDONTWRITEBYTECODE": "1"}
    installer.inside(environment, code, {**CPU_ENVIRONMENT, **path})


def _publish(recipe: Recipe, folder: Path, environment: Path) -> Path:
    """Put tokgate's own files beside the environment and write ``engine.yaml``, last and at once."""
    own = folder / f"tokgate-{recipe.sources_digest[:12]}"
    for path in recipe.sources():
        (own / path).parent.mkdir(parents=True, exist_ok=True)
        store.write(own / path, (KERNELS / path).read_text(encoding="utf-8"))
    engine = {
        "kind": "cpu",
        "version": recipe.version,
        "python": str(environment.absolute() / "bin" / "python"),
        "pythonpath": [str(own.absolute())],
        "launcher": [str(own.absolute() / LAUNCHER)],
        "env": dict(CPU_ENVIRONMENT),
        "lock": store.LOCK,
        "lock_digest": recipe.digest,
    }
    store.write(folder / store.LOCK, recipe.lock_file.read_text(encoding="utf-8"))
    engine_file = folder / "engine.yaml"
    head = f"# Written by: tokgate env make {recipe.name}\n"
    store.write(engine_file, head + yaml.safe_dump(engine, sort_keys=False, width=1000))
    store.touch_used(folder)
    return engine_file
