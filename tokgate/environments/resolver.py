"""Resolve requirements to a lock: by uv, or by pip where there is no uv.

Whatever the machine's own index is (uv's settings, or pip's where pip does it), its address never gets
into a lock: a lock says which files by their hashes, not where they come from.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokgate.environments import installer
from tokgate.environments.lock import normalised
from tokgate.environments.wheel import LocalWheel

DIRECT = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*@\s")


@dataclass(frozen=True, slots=True)
class Target:
    """For what a lock holds.

    Attributes:
        python: version of CPython, as in ``3.12``.
        platform: as uv spells it, as in ``x86_64-manylinux_2_34``; empty for this machine.
    """

    python: str
    platform: str = ""


def resolve(
    requirements: Sequence[str], target: Target, *, wheel: LocalWheel | None = None, head: str = ""
) -> str:
    """The text of a lock: every package that these requirements need, pinned, with hashes.

    Args:
        requirements: as pip reads them.
        target: for which Python and platform.
        wheel: the requirements hold ``name @ file:...`` of this file; locked as its version and digest.
        head: first line of the lock, without the ``#``.

    Raises:
        HostFault: nothing satisfies the requirements; with the resolver's last lines.
    """
    uv = installer.uv()
    blocks = _by_uv(uv, requirements, target) if uv else _by_pip(requirements, target)
    if wheel is not None:
        blocks[wheel.name] = f"{wheel.name}=={wheel.version} \\\n    --hash=sha256:{wheel.sha256}"
    first = f"# {head}\n" if head else ""
    return first + "".join(f"{blocks[name]}\n" for name in sorted(blocks))


def _by_uv(uv: str, requirements: Sequence[str], target: Target) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="tokgate-resolve-") as scratch:
        wanted = Path(scratch, "wanted.in")
        wanted.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
        command = [
            *(uv, "pip", "compile", str(wanted), "--quiet", "--no-header", "--no-annotate"),
            *("--generate-hashes", "--no-emit-index-url", "--no-emit-find-links"),
            *("--python-version", target.python),
        ]
        if target.platform:
            command += ["--python-platform", target.platform]
        text = installer.run(command, "resolving by uv")
    blocks: dict[str, str] = {}
    body = "\n".join(line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    for block in re.split(r"\n(?=\S)", body):
        # Warnings share the stream with the result; they are neither a pin nor a direct reference.
        found = DIRECT.match(block) or re.match(r"^(?P<name>[\w.-]+)==", block)
        if found:
            blocks[normalised(found["name"])] = block
    return blocks


def _by_pip(requirements: Sequence[str], target: Target) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="tokgate-resolve-") as scratch:
        report = Path(scratch, "report.json")
        command = [
            *(_python_with_pip(target.python, scratch), "-m", "pip", "--disable-pip-version-check"),
            "--no-input",
            *("install", "--dry-run", "--ignore-installed", "--quiet", "--report", str(report)),
            *requirements,
        ]
        installer.run(command, "resolving by pip")
        installs = json.loads(report.read_text(encoding="utf-8"))["install"]
    blocks: dict[str, str] = {}
    for found in installs:
        name = normalised(found["metadata"]["name"])
        digest = found["download_info"]["archive_info"]["hashes"]["sha256"]
        blocks[name] = f"{name}=={found['metadata']['version']} \\\n    --hash=sha256:{digest}"
    return blocks


def _python_with_pip(python: str, scratch: str) -> str:
    """The running Python where it will do, else one in a new environment."""
    if python == installer.running() and importlib.util.find_spec("pip"):
        return sys.executable
    environment = Path(scratch, "venv")
    installer.create(environment, python)
    return str(environment / "bin" / "python")
