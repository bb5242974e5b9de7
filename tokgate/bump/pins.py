"""Which versions are compared when none is named: ``ci/sglang.pin`` of the base branch and of the change."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tokgate.errors import UsageFault

PIN = "ci/sglang.pin"
_GIT_S = 30.0


def pin_here(root: Path) -> str:
    """The version pinned in the working tree.

    Raises:
        UsageFault: there is no pin.
    """
    path = root / PIN
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageFault(
            f"{path}: no pin to take --to from: {error.strerror}", ["name the version: --to"]
        ) from error
    if not text:
        raise UsageFault(f"{path} is empty", ["name the version: --to"])
    return text


def pin_of_base(root: Path, base: str | None = None) -> tuple[str, str]:
    """The version pinned where the change branched off, and the name of that branch.

    Args:
        base: a branch or commit; by default ``origin/$GITHUB_BASE_REF`` where that is set, else the first of
            ``origin/main``, ``origin/master``, ``main``, ``master`` that exists.

    Raises:
        UsageFault: no git, no such branch, or no pin there.
    """
    told = os.environ.get("GITHUB_BASE_REF")
    named = base or (f"origin/{told}" if told else None)
    names = (named,) if named else ("origin/main", "origin/master", "main", "master")
    for name in names:
        if _git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}") is None:
            continue
        # The pin as it was when the change began, not as the base branch has it since.
        fork = _git(root, "merge-base", name, "HEAD")
        text = _git(root, "show", f"{(fork or name).strip()}:./{PIN}")
        if text is None or not text.strip():
            raise UsageFault(f"{name} has no {PIN}, so no old version", ["name the version: --from"])
        return text.strip(), name
    raise UsageFault(
        f"no base branch that tells the old version: looked for {', '.join(names)}",
        [
            "name the version (--from) or the branch (--base); a shallow clone has no base: git fetch origin main"
        ],
    )


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints; ``None`` when it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=_GIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageFault(f"git does not run here: {error}", ["name the versions: --from, --to"]) from error
    return done.stdout if done.returncode == 0 else None
