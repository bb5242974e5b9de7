"""What an engine's environment is asked for: a released version, a commit, a wheel or a folder.

::

    sglang==0.5.15.post1                 a released version; 0.5.15.post1 alone means the same
    sglang @ git+URL@REF                 a commit of a repository; #subdirectory=DIR where it is not at its top
    commit:SHA  with --repo PATH         a commit of a local clone
    ./sglang-0.5.16-py3-none-any.whl     a wheel
    ./sglang/python                      a folder with a pyproject.toml
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokgate.environments.lock import normalised
from tokgate.errors import UsageFault

Source = Literal["release", "git", "commit", "wheel", "folder"]
PACKAGE = "sglang"
NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
RELEASE = re.compile(rf"^(?P<name>{NAME})(?P<extras>\[[^\]]+\])?\s*==\s*(?P<version>[A-Za-z0-9.!+_-]+)$")
BARE = re.compile(r"^\d+(?:\.\d+)+(?:[.\w+-]*)$")
GIT = re.compile(
    rf"^(?P<name>{NAME})(?P<extras>\[[^\]]+\])?\s*@\s*git\+(?P<url>[^#]+?)@(?P<ref>[^@/#]+)"
    r"(?:#subdirectory=(?P<subdirectory>[^&]+))?$"
)
COMMIT = re.compile(r"^commit:(?P<ref>\S+)$")
FORMS = (
    "give one of these:",
    "  sglang==0.5.15.post1                  a released version",
    "  'sglang @ git+URL@COMMIT'             a commit of a repository",
    "  commit:SHA --repo PATH                a commit of a local clone",
    "  PATH.whl or a folder with a pyproject.toml",
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request.

    Attributes:
        text: as given, for messages; without a password that an address holds.
        source: which of the forms.
        package: name of the package, normalised; empty where only a build will tell.
        extras: as in ``[all]``; empty for none.
        version: of a released version, else empty.
        location: address, clone, wheel or folder; empty for a released version.
        ref: commit, tag or branch, of ``git`` and ``commit``.
        subdirectory: of the package in a repository; empty: its top, or ``python`` where that has the project.
    """

    text: str
    source: Source
    package: str
    extras: str = ""
    version: str = ""
    location: str = ""
    ref: str = ""
    subdirectory: str = ""

    @property
    def name(self) -> str:
        """Name of a released version's environment: ``--engine sglang-0.5.15.post1``."""
        return slug(f"{self.package}{self.extras}-{self.version}")


def parse(text: str, repo: Path | None = None) -> Wanted:
    """What is asked for.

    Args:
        text: one of the forms above.
        repo: local clone, for ``commit:SHA``.

    Raises:
        UsageFault: it is none of them, or a path does not exist.
    """
    asked = text.strip()
    found = COMMIT.match(asked)
    if (found is None) != (repo is None):
        raise UsageFault(
            f"'{asked}': a commit of a local clone needs both: commit:SHA and --repo PATH", FORMS[3:4]
        )
    if found is not None and repo is not None:
        if not repo.is_dir():
            raise UsageFault(f"--repo {repo}: no such folder")
        return Wanted(asked, "commit", PACKAGE, location=str(repo.absolute()), ref=found["ref"])
    if BARE.match(asked):
        asked = f"{PACKAGE}=={asked}"
    if found := RELEASE.match(asked):
        return Wanted(
            asked, "release", normalised(found["name"]), found["extras"] or "", version=found["version"]
        )
    if found := GIT.match(asked):
        return Wanted(
            without_password(asked),
            "git",
            normalised(found["name"]),
            found["extras"] or "",
            location=found["url"],
            ref=found["ref"],
            subdirectory=found["subdirectory"] or "",
        )
    path = Path(asked)
    if path.suffix == ".whl" and "://" not in asked:
        if not path.is_file():
            raise UsageFault(f"no wheel {path}")
        return Wanted(asked, "wheel", normalised(path.name.split("-")[0]), location=str(path.absolute()))
    if asked and path.is_dir():
        return Wanted(asked, "folder", "", location=str(path.absolute()))
    raise UsageFault(f"cannot make an environment of '{without_password(asked)}'", FORMS)


def slug(text: str) -> str:
    """A text as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9.+]+", "-", text).strip("-.")


def without_password(text: str) -> str:
    """A text whose addresses hold no user and no password."""
    return re.sub(r"(://)[^/\s@]+@", r"\1", text)
