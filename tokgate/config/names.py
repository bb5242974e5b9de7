"""Names that become parts of paths: of profiles, workloads and host classes."""

from __future__ import annotations

import re

from tokgate.errors import UsageFault

_PLAIN = re.compile(r"\w[\w.+@=:()-]{0,99}")
EXPECTED = "letters, digits and . _ - + @ = : ( ), beginning with a letter, digit or _; 100 at most"


def is_plain(name: str) -> bool:
    """Whether a name is one part of a path and leads nowhere else: ``..``, ``a/b`` and the like are not."""
    return _PLAIN.fullmatch(name) is not None


def check_plain(what: str, name: str) -> str:
    """The name, checked; it may come from a stored file that somebody edited.

    Raises:
        UsageFault: it is not plain.
    """
    if not is_plain(name):
        raise UsageFault(f"{what} {name!r} is no name: expected {EXPECTED}"[:400])
    return name
