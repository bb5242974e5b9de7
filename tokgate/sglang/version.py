"""SGLang's version numbers, and which versions' rules are known.

Flag names, log formats and HTTP fields change between releases; every rule in this package is chosen by
a version. A development or release candidate build follows the rules of the release that it precedes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

_PATTERN = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[._-]?(?P<pre>a|b|rc)(?P<pre_n>\d*))?"
    r"(?:[._-]?post(?P<post>\d*))?"
    r"(?:[._-]?dev(?P<dev>\d*))?"
    r"(?:\+(?P<local>[\w.\-]+))?",
    re.IGNORECASE,
)
_PRE_ORDER = {"a": 0, "b": 1, "rc": 2}
_FINAL = 3


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """One version, ordered as pip orders them: dev < a < b < rc < final < post; a local suffix is ignored.

    Attributes:
        text: as given.
        release: the numbers, padded to three.
        pre: ``(0..2 for a, b, rc; 3 for none, number)``.
        post: number of the post release, -1 for none.
        dev: number of the development build, ``None`` for none.
    """

    text: str
    release: tuple[int, ...]
    pre: tuple[int, int] = (_FINAL, 0)
    post: int = -1
    dev: int | None = None

    def _key(self) -> tuple[object, ...]:
        # A bare development build precedes every pre-release of its release.
        pre = (-1, 0) if self.dev is not None and self.pre[0] == _FINAL and self.post < 0 else self.pre
        return (self.release, pre, self.post, self.dev is None, self.dev or 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key() == other._key()

    def __lt__(self, other: Version) -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return self.text


def parse_version(text: str) -> Version | None:
    """The version in ``text``, or ``None`` when it is not one (a commit hash, ``unknown``)."""
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        return None
    release = tuple(int(part) for part in match["release"].split("."))
    pre = match["pre"]
    return Version(
        text=text.strip(),
        release=release + (0,) * (3 - len(release)),
        pre=(_PRE_ORDER[pre.lower()], int(match["pre_n"] or 0)) if pre else (_FINAL, 0),
        post=int(match["post"] or 0) if match["post"] is not None else -1,
        dev=int(match["dev"] or 0) if match["dev"] is not None else None,
    )


def _known(text: str) -> Version:
    version = parse_version(text)
    if version is None:
        raise ValueError(text)
    return version


KNOWN_FIRST = _known("0.5.9")
KNOWN_LAST = _known("0.5.23")


@dataclass(frozen=True, slots=True)
class Rules:
    """Which release's rules apply.

    Attributes:
        release: three numbers, always within :data:`KNOWN_FIRST` and :data:`KNOWN_LAST`.
        note: why these rules, when the version itself is not a known one; else ``None``.
    """

    release: tuple[int, ...]
    note: str | None = None

    def since(self, patch: int) -> bool:
        """Whether 0.5.``patch`` or later."""
        return self.release >= (0, 5, patch)


def rules_for(text: str) -> Rules:
    """The rules for a version as SGLang reports it.

    An unreadable or newer version gets the newest known rules, an older one the oldest, each with a note.
    """
    version = parse_version(text)
    known = f"{KNOWN_FIRST} to {KNOWN_LAST}"
    if version is None:
        return Rules(
            KNOWN_LAST.release,
            f"SGLang version {text!r} cannot be read: rules of {KNOWN_LAST} are used (known: {known})",
        )
    if version.release > KNOWN_LAST.release:
        return Rules(
            KNOWN_LAST.release,
            f"SGLang {text} is newer than tokgate knows: rules of {KNOWN_LAST} are used (known: {known})",
        )
    if version.release < KNOWN_FIRST.release:
        return Rules(
            KNOWN_FIRST.release,
            f"SGLang {text} is older than tokgate knows: rules of {KNOWN_FIRST} are used (known: {known})",
        )
    return Rules(version.release)
