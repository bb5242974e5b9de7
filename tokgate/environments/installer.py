"""Run the installers (venv, pip, uv) and the checks inside a new environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tokgate.environments.lock import Lock
from tokgate.environments.wheel import LocalWheel
from tokgate.errors import HostFault

Say = Callable[[str], None]
LAST_LINES = 15


def interpreter(python: str) -> str:
    """A CPython to make environments from: the running one, else the one of that version on PATH.

    Args:
        python: its version, as in ``3.11``.

    Raises:
        HostFault: there is none.
    """
    if python == running() and sys.implementation.name == "cpython":
        return sys.executable
    found = shutil.which(f"python{python}")
    if found is None:
        raise HostFault(
            f"making an engine environment needs CPython {python}",
            [f"this is {sys.version.split()[0]} ({sys.executable}) and there is no python{python} on PATH"],
        )
    return found


def running() -> str:
    """Version of the running Python, as in ``3.11``."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def create(environment: Path, python: str) -> None:
    """A virtual environment with pip in it."""
    run([interpreter(python), "-m", "venv", str(environment)], "making the virtual environment")


def install(environment: Path, lock: Lock, say: Say) -> None:
    """Install every package of the lock, by hash, and nothing else.

    torch comes first, by pip, which reads the machine's pip configuration: that is where a machine
    announces its own copy of torch's CPU build, and uv does not read it. pip picks that build over the
    public one by version, but not when it knows the hash of the public one only: so it is fetched
    first and its hash compared when it is installed.

    A CUDA build of torch (what the public index has for Linux) works on a CPU too but does not load
    without CUDA libraries; only then these are added, in the versions that torch itself asks for.
    """
    python = str(environment / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    install_pip = [*pip, "install", "--no-deps", "--require-hashes", "--requirement"]
    torch_pin = f"torch=={lock.versions['torch']}"
    with tempfile.TemporaryDirectory(dir=environment, prefix="fetched-") as scratch:
        torch, rest, pins = (Path(scratch, name) for name in ("torch.txt", "rest.txt", "pins.txt"))
        others = [name for name in lock.blocks if name != "torch"]
        torch.write_text(lock.requirements(["torch"]), encoding="utf-8")
        rest.write_text(lock.requirements(others), encoding="utf-8")
        pins.write_text("".join(f"{name}=={pin}\n" for name, pin in lock.versions.items()), encoding="utf-8")

        run([*pip, "download", "--no-deps", "--dest", scratch, torch_pin], "fetching torch")
        wheel = next(Path(scratch).glob("torch-*.whl"))
        say(f"installing {wheel.name.split('-cp')[0]} by pip ({wheel.stat().st_size / 1e6:.0f} MB)")
        run([*install_pip, str(torch), "--no-index", "--find-links", scratch], "installing torch")

        by_uv = uv()
        if by_uv is not None:
            say(f"installing {len(others)} other packages by uv")
            # A link into uv's cache would let an edit in this environment into every other one.
            command = [by_uv, "pip", "install", "--python", python, "--no-deps", "--link-mode", "copy"]
            command += ["--compile-bytecode"]
            try:
                run([*command, "--require-hashes", "--requirement", str(rest)], "installing by uv")
            except HostFault as fault:
                say(f"uv could not, pip will try: {fault.details[-1].strip()}")
                by_uv = None
        if by_uv is None:
            say(f"installing {len(others)} other packages by pip")
            run([*install_pip, str(rest)], "installing by pip")

        if "+cpu" not in wheel.name:
            say("this torch is a CUDA build: adding the CUDA libraries that it loads (about 3 GB more)")
            run([*pip, "install", "--constraint", str(pins), torch_pin], "installing CUDA libraries")


def fill(environment: Path, lock: Lock, python: str, wheel: LocalWheel | None) -> None:
    """Make a virtual environment of a lock: every package by its hash, and nothing else.

    By uv, else by venv and pip. A package that comes from a wheel of one's own is installed from that file.

    Args:
        environment: folder, not there yet.
        lock: what to install.
        python: version of CPython, as in ``3.12``.
        wheel: checked before, by its digest.

    Raises:
        HostFault: an installer failed; with its last lines.
    """
    by_uv = uv()
    interpreter_ = environment / "bin" / "python"
    if by_uv is not None:
        # uv finds, or where it may fetches, a Python of that version.
        asked = sys.executable if python == running() else python
        run([by_uv, "venv", "--quiet", "--python", asked, str(environment)], "making the virtual environment")
        install_ = [by_uv, "pip", "install", "--quiet", "--python", str(interpreter_), "--compile-bytecode"]
        install_ += ["--link-mode", "copy"]  # as above
    else:
        create(environment, python)
        install_ = [str(interpreter_), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    if wheel is not None:
        run([*install_, "--no-deps", str(wheel.path)], "installing the wheel")
    others = [name for name in lock.blocks if wheel is None or name != wheel.name]
    if others:
        with tempfile.TemporaryDirectory(prefix="tokgate-install-") as scratch:
            requirements = Path(scratch, "lock.txt")
            requirements.write_text(lock.requirements(others), encoding="utf-8")
            options = ["--no-deps", "--require-hashes", "--requirement", str(requirements)]
            run([*install_, *options], "installing the packages")


def inside(environment: Path, code: str, env: Mapping[str, str]) -> str:
    """Run Python code in the environment and return what it printed.

    Raises:
        HostFault: it failed; with its last lines.
    """
    return run([str(environment / "bin" / "python"), "-c", code], "checking the environment", env)


def run(command: Sequence[str], what: str, env: Mapping[str, str] | None = None) -> str:
    """Run a command to its end and return its output, standard error included.

    Raises:
        HostFault: it could not be started or failed; with the command and its last lines.
    """
    # The gate's own PYTHONPATH and virtual environment are no business of the engine's environment.
    clean = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    try:
        done = subprocess.run(
            command,
            env={**clean, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise HostFault(f"{what} failed: {error.strerror}", [f"command: {' '.join(command)}"]) from error
    if done.returncode:
        last = [f"  {line}" for line in done.stdout.strip().splitlines()[-LAST_LINES:]]
        raise HostFault(
            f"{what} failed with exit code {done.returncode}", [f"command: {' '.join(command)}", *last]
        )
    return done.stdout


def uv() -> str | None:
    """Path of uv: beside the running Python, else on PATH; None where it is not installed."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else shutil.which("uv")
