"""The versions between two: released ones, engine files, commits of a local clone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tokgate.config.engine import Engine, load_engine
from tokgate.errors import HostFault, UsageFault
from tokgate.sglang.version import Version, parse_version

PLACE = "{version}"
_ASK_S = 120.0


def between(good: str, bad: str, known: Sequence[str]) -> list[str]:
    """Final releases from ``good`` to ``bad``, both included, in order.

    Args:
        known: every version there is, in any order; the ends need not be among them.

    Raises:
        UsageFault: an end is no version, or they are not in order.
    """
    ends = [_version(text) for text in (good, bad)]
    if not ends[0] < ends[1]:
        raise UsageFault(f"--good {good} is not older than --bad {bad}")
    inside = []
    for text in known:
        version = parse_version(text)
        if version is None or version.dev is not None or version.pre[0] != 3:
            continue
        if ends[0] < version < ends[1]:
            inside.append(version)
    return [good, *(version.text for version in sorted(set(inside))), bad]


def left_out(good: str, bad: str, versions: Sequence[str]) -> list[str]:
    """Which of the versions that a user named are no candidates: one line, or none.

    Args:
        good, bad: the ends; commits leave out nothing.

    Raises:
        UsageFault: as :func:`between` and :func:`named`.
    """
    if parse_version(good) is None or parse_version(bad) is None:
        return []
    kept = {*between(good, bad, versions), *named((good, bad))}
    dropped = [version for version in named(versions) if version not in kept]
    return (
        [f"left out of --versions, no release from {good} to {bad}: {', '.join(dropped)}"] if dropped else []
    )


def named(versions: Sequence[str]) -> list[str]:
    """Versions that a user named.

    Raises:
        UsageFault: one is no version.
    """
    return [_version(text).text for text in versions]


def released() -> list[str]:
    """Every release of SGLang that the package index of this interpreter's pip lists.

    Raises:
        HostFault: pip does not answer, for want of a network, say.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", "sglang", "--disable-pip-version-check"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostFault(f"pip does not list the releases of SGLang: {error}", _ADVICE) from error
    listed = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if listed is None:
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise HostFault(f"pip does not list the releases of SGLang: {last}", _ADVICE)
    return [text.strip() for text in listed[1].split(",")]


_ADVICE = ["name them: --versions A,B,C", "or give engine files: --engines 'FOLDER/{version}.yaml'"]


class EngineFiles:
    """Engine files by version: ``engines/{version}.yaml``.

    Args:
        template: a path with ``{version}`` in it.

    Raises:
        UsageFault: it has no ``{version}``.
    """

    def __init__(self, template: str) -> None:
        if template.count(PLACE) != 1:
            raise UsageFault(f"--engines is a path with {PLACE} in it, once; got '{template}'")
        self._template = template

    def versions(self) -> list[str]:
        """What lies there."""
        head, tail = self._template.split(PLACE)
        folder = Path(head).parent if not head.endswith("/") else Path(head)
        start = "" if head.endswith("/") else Path(head).name
        part, slash, rest = tail.partition("/")
        found = []
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            name = path.name
            if name.startswith(start) and name.endswith(part) and (not slash or (path / rest).is_file()):
                found.append(name[len(start) : len(name) - len(part)])
        return found

    def engine(self, version: str) -> Engine:
        """The engine of a version.

        Raises:
            UsageFault: there is no such file.
            ConfigFault: it is faulty.
        """
        path = Path(self._template.replace(PLACE, version))
        if not path.is_file():
            raise UsageFault(f"no engine file for {version}: {path}")
        return load_engine(path)


def commits(repository: Path, good: str, bad: str) -> list[str]:
    """Commits of a local clone from ``good`` to ``bad``, both included, along the first parents.

    Args:
        good, bad: tags, commits, or versions (``0.5.15`` is taken as tag ``v0.5.15`` where there is one).

    Raises:
        UsageFault: no clone, no such commit, or ``good`` is no ancestor of ``bad``.
    """
    ends = [commit_of(repository, name) for name in (good, bad)]
    if _git(repository, "merge-base", "--is-ancestor", *ends) is None:
        raise UsageFault(f"{good} is no ancestor of {bad} in {repository}: releases from different branches")
    listed = _git(repository, "rev-list", "--reverse", "--first-parent", f"{ends[0]}..{ends[1]}") or ""
    found = listed.split()
    if not found:
        raise UsageFault(f"there is no commit between {good} and {bad} in {repository}")
    return [ends[0], *found]


def check_clone(repository: Path) -> None:
    """Check that a folder is a git clone.

    Raises:
        UsageFault: it is not.
    """
    if not repository.is_dir():
        raise UsageFault(f"--commits {repository}: no such folder")
    if _git(repository, "rev-parse", "--git-dir") is None:
        raise UsageFault(f"--commits {repository} is no git clone")


def check_releases(repository: Path) -> None:
    """Check that a folder is a clone in which commits between releases of SGLang can be looked up.

    Raises:
        UsageFault: no git clone, or one without the tags of releases.
    """
    check_clone(repository)
    tags = (_git(repository, "tag", "--list", "v*") or "").split()
    if not any(parse_version(tag.removeprefix("v")) for tag in tags):
        raise UsageFault(
            f"--commits {repository} has no tag of a release of SGLang, as v0.5.15",
            ["git fetch --tags there"],
        )


def commit_of(repository: Path, name: str) -> str:
    """The commit of a tag, a version or an abbreviated hash.

    Raises:
        UsageFault: no clone, or no such commit in it.
    """
    check_clone(repository)
    for candidate in (f"v{name}", name):
        found = _git(repository, "rev-parse", "--verify", "--quiet", f"{candidate}^{{commit}}")
        if found:
            return found.strip()
    raise UsageFault(f"{repository} has no commit or tag '{name}'", ["git fetch --tags there"])


def subject_of(repository: Path, commit: str) -> str:
    """First line of a commit's message."""
    return (_git(repository, "show", "-s", "--format=%s", commit) or "").strip()


def _git(repository: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageFault(f"git does not run here: {error}") from error
    return done.stdout if done.returncode == 0 else None


def _version(text: str) -> Version:
    found = parse_version(text)
    if found is None:
        raise UsageFault(f"'{text}' is no version of SGLang", ["for commits: --commits REPOSITORY"])
    return found
