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
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokgate.environments.lock import normalised
from tokgate.errors import UsageFault

Source = Literal["release", "git", "commit", "wheel", "folder"]
PACKAGE = "sglang"
NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
RELEASE = re.compile(rf"^(?P<name>{NAME})(?P<extras>\[[^\]]+\])?\s*==\s*(?P<version>[A-Za-z0-9.!+_-]+)$")
# As PEP 440 has it: epoch, numbers, pre-, post- and development release, local part.
VERSION = re.compile(
    r"v?(?:\d+!)?\d+(?:\.\d+)*(?:[._-]?(?:a|b|c|rc|alpha|beta|pre|preview)[._-]?\d*)?"
    r"(?:-\d+|[._-]?(?:post|rev|r)[._-]?\d*)?(?:[._-]?dev[._-]?\d*)?(?:\+[a-z0-9]+(?:[._-][a-z0-9]+)*)?",
    re.IGNORECASE,
)
PYTHON = re.compile(r"3\.(?P<minor>\d{1,2})")
PYTHON_MINOR_MIN = 8  # what any SGLang asked for
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
        _is_sglang(found["name"], asked)
        if VERSION.fullmatch(found["version"]) is None:
            raise UsageFault(
                f"'{asked}': '{found['version']}' is no version; expected numbers, as in {PACKAGE}==0.5.15.post1"
            )
        return Wanted(
            asked, "release", normalised(found["name"]), found["extras"] or "", version=found["version"]
        )
    if found := GIT.match(asked):
        _is_sglang(found["name"], without_password(asked))
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
        if path.name.count("-") < 4 or not zipfile.is_zipfile(path):
            raise UsageFault(
                f"{path} is no wheel: expected a zip file named as in {PACKAGE}-0.5.16-py3-none-any.whl"
            )
        _is_sglang(path.name.split("-")[0], asked)
        return Wanted(asked, "wheel", normalised(path.name.split("-")[0]), location=str(path.absolute()))
    if asked and path.is_dir():
        return Wanted(asked, "folder", "", location=str(path.absolute()))
    raise UsageFault(f"cannot make an environment of '{without_password(asked)}'", FORMS)


def python_version(text: str) -> str:
    """A version of CPython that ``--python`` may name, as in ``3.12``.

    Raises:
        UsageFault: it is none, or one for which there is no SGLang.
    """
    found = PYTHON.fullmatch(text)
    if found is None or int(found["minor"]) < PYTHON_MINOR_MIN:
        raise UsageFault(
            f"--python {text}: expected a version of CPython, 3.{PYTHON_MINOR_MIN} or later, as in 3.12"
        )
    return text


def _is_sglang(name: str, asked: str) -> None:
    if normalised(name) != PACKAGE:
        raise UsageFault(
            f"'{asked}': {name} is not SGLang; an engine's environment is of the package {PACKAGE}"
        )


def slug(text: str) -> str:
    """A text as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9.+]+", "-", text).strip("-.")


def without_password(text: str) -> str:
    """A text whose addresses hold no user and no password."""
    return re.sub(r"(://)[^/\s@]+@", r"\1", text)
