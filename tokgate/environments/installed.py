"""What an engine's environment holds, kept with the results that were measured in it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tokgate.config.engine import Engine
from tokgate.environments.lock import normalised
from tokgate.environments.store import LOCK, USED, touch_used
from tokgate.errors import ResultsUnwritable

KEPT_LOCK = "engine-lock.txt"
KEPT_PACKAGES = "engine-packages.txt"
TIMEOUT_S = 60.0
# The first of a name on the path is the one that is imported.
LIST = """
import importlib.metadata, json
found = {}
for item in importlib.metadata.distributions():
    found.setdefault(item.metadata["Name"], item.version)
print(json.dumps(found))
"""


class Unknown(Exception):
    """The engine's Python does not tell its packages."""


def packages(engine: Engine) -> dict[str, str]:
    """Package, normalised, to version, as the engine's own Python sees them.

    Raises:
        Unknown: it does not run, or does not answer.
    """
    env = {**os.environ, **engine.env}
    if engine.pythonpath:
        env["PYTHONPATH"] = os.pathsep.join(engine.pythonpath)
    else:
        env.pop("PYTHONPATH", None)
    try:
        done = subprocess.run(
            [engine.python, "-c", LIST],
            env=env,
            cwd="/",  # not the packages of the folder that we happen to be in
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise Unknown(f"{engine.python} does not tell its packages: {error}") from error
    return {normalised(name): version for name, version in found.items() if name}


def keep(engine: Engine, folder: Path) -> Path | None:
    """Write what the engine's environment holds into a folder of results.

    The lock where the engine file names one, else the packages that are found installed. A lock's environment
    is noted as used now.

    Returns:
        The file; None for the emulated engine, which is tokgate itself.

    Raises:
        ResultsUnwritable: the file cannot be written.
    """
    if engine.kind == "emulated":
        return None
    path, text = (
        (folder / KEPT_PACKAGES, _listed(engine)) if engine.lock is None else _locked(engine.lock, folder)
    )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResultsUnwritable(f"{path} cannot be written: {error.strerror}") from error
    return path


def _locked(lock: Path, folder: Path) -> tuple[Path, str]:
    if lock.name == LOCK and (lock.parent / USED).exists():
        touch_used(lock.parent)
    try:
        return folder / KEPT_LOCK, lock.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return folder / KEPT_LOCK, f"# not known: {lock}: {error}\n"


def _listed(engine: Engine) -> str:
    try:
        return "".join(f"{name}=={version}\n" for name, version in sorted(packages(engine).items()))
    except Unknown as error:
        return f"# not known: {error}\n"
