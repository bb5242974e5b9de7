"""Build the wheel of a commit or a folder, once for each content.

Built wheels are kept under the root, by what they were built from: a commit and its folder, or the digest
of a folder's files. The sources themselves are never built in, nor changed: a build leaves its droppings
in a copy.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from tokgate.environments import installer
from tokgate.environments.wanted import Wanted, without_password
from tokgate.environments.wheel import LocalWheel
from tokgate.errors import HostFault, UsageFault

Say = Callable[[str], None]
FOLDER = ".wheels"  # under the root of environments
LEFT_OUT = shutil.ignore_patterns(".git", "__pycache__", "*.egg-info", "build", "dist", ".venv*", "*.pyc")


@dataclass(frozen=True, slots=True)
class Built:
    """A wheel and what it was built from.

    Attributes:
        wheel: the file and its digest.
        origin: one line for the lock: ``commit 1f0c...`` or ``folder, SHA-256 ab12...``; no path, no address.
        key: short identity of the origin, for a name.
    """

    wheel: LocalWheel
    origin: str
    key: str


def wheel_of(wanted: Wanted, root: Path, say: Say) -> Built:
    """The wheel of what is wanted; built, if it has to be, and kept under the root.

    Raises:
        UsageFault: the commit does not exist, or the folder holds no project.
        HostFault: git or the build failed; with the last lines.
    """
    if wanted.source == "wheel":
        path = Path(wanted.location)
        digest = sha256(path)
        return Built(LocalWheel(path, digest), f"wheel, SHA-256 {digest}", digest[:12])
    if wanted.source == "folder":
        return _of_folder(Path(wanted.location), root, say)
    return _of_commit(wanted, root, say)


def _of_folder(folder: Path, root: Path, say: Say) -> Built:
    if not _is_project(folder):
        raise UsageFault(f"{folder} holds neither a pyproject.toml nor a setup.py")
    digest = tree_digest(folder)

    def prepare(copy: Path) -> Path:
        # With its .git, if it has one: that is where a build may read its version.
        repository = _git_top(folder)
        top = repository or folder
        shutil.copytree(top, copy / "source", symlinks=True, ignore=_ignore_builds)
        return copy / "source" / folder.resolve().relative_to(top.resolve())

    return Built(
        _built(root / FOLDER / digest, prepare, say), f"folder, SHA-256 {digest}", f"folder-{digest[:12]}"
    )


def _of_commit(wanted: Wanted, root: Path, say: Say) -> Built:
    if wanted.source == "commit" and _asked_git(Path(wanted.location), "--git-dir") is None:
        raise UsageFault(f"--repo {wanted.location} is no git clone")
    with tempfile.TemporaryDirectory(prefix="tokgate-git-") as scratch:
        clone = Path(scratch, "clone")
        local = ["--shared"] if wanted.source == "commit" else ["--filter=blob:none"]
        say(f"fetching {wanted.ref} of {without_password(wanted.location)}")
        _git(["clone", "--quiet", "--no-checkout", *local, "--", wanted.location, str(clone)], clone.parent)
        commit = _commit(clone, wanted)
        _git(["checkout", "--quiet", "--detach", commit], clone)
        project = clone / wanted.subdirectory if wanted.subdirectory else clone
        if not wanted.subdirectory and not _is_project(clone) and _is_project(clone / "python"):
            project = clone / "python"
        if not _is_project(project):
            raise UsageFault(f"commit {commit[:12]} holds no project", ["name it by #subdirectory=DIR"])
        below = project.relative_to(clone).parts
        key = "-".join([commit, *below])
        return Built(
            _built(root / FOLDER / key, lambda _: project, say), f"commit {commit}", f"commit-{commit[:12]}"
        )


def _commit(clone: Path, wanted: Wanted) -> str:
    """The full hash of what the request names, which may be a branch or a tag too."""
    for name in (wanted.ref, f"origin/{wanted.ref}"):
        command = ["git", "-C", str(clone), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    raise UsageFault(f"{without_password(wanted.location)} has no commit '{wanted.ref}'")


def _built(kept: Path, prepare: Callable[[Path], Path], say: Say) -> LocalWheel:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(kept.with_name(f".{kept.name}.lock")):
        if not kept.is_dir():
            with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".build-") as scratch:
                project = prepare(Path(scratch))
                out = Path(scratch, "wheel")
                say("building its wheel")
                _build(project, out)
                if len(list(out.glob("*.whl"))) != 1:
                    raise HostFault("the build made no wheel")
                out.rename(kept)
        os.utime(kept)
        path = next(kept.glob("*.whl"))
    return LocalWheel(path, sha256(path))


def _build(project: Path, out: Path) -> None:
    out.mkdir()
    uv = installer.uv()
    if uv:
        command = [uv, "build", "--wheel", "--python", sys.executable, "--out-dir", str(out)]
        installer.run([*command, str(project)], "building the wheel")
        for other in [path for path in out.iterdir() if path.suffix != ".whl"]:
            other.unlink()  # a .gitignore
    else:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "wheel"]
        installer.run([*command, "--no-deps", "--wheel-dir", str(out), str(project)], "building the wheel")


def tree_digest(folder: Path) -> str:
    """SHA-256 over the paths and contents of a project's files, without what builds leave there."""
    total = hashlib.sha256()
    for directory, folders, files in os.walk(folder):
        left_out = LEFT_OUT(directory, [*folders, *files])
        folders[:] = sorted(set(folders) - left_out)
        for name in sorted(set(files) - left_out):
            path = Path(directory, name)
            if path.is_file():
                total.update(f"{path.relative_to(folder).as_posix()} {sha256(path)}\n".encode())
    return total.hexdigest()


def sha256(path: Path) -> str:
    """A file's digest, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _ignore_builds(directory: str, names: list[str]) -> set[str]:
    return LEFT_OUT(directory, names) - {".git"}


def _is_project(folder: Path) -> bool:
    return (folder / "pyproject.toml").is_file() or (folder / "setup.py").is_file()


def _git_top(folder: Path) -> Path | None:
    found = _asked_git(folder, "--show-toplevel")
    return None if found is None else Path(found)


def _asked_git(folder: Path, what: str) -> str | None:
    """What ``git rev-parse`` says of a folder; ``None`` where it is not below a repository, or there is no git."""
    command = ["git", "-C", str(folder), "rev-parse", what]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _git(arguments: list[str], cwd: Path) -> None:
    """Run git; it never asks for a password."""
    command = ["git", "-C", str(cwd), *arguments]
    try:
        installer.run(command, f"git {arguments[0]}", {"GIT_TERMINAL_PROMPT": "0"})
    except HostFault as fault:
        raise HostFault(fault.headline, [without_password(line) for line in fault.details]) from None
