"""SGLang version numbers, as far as formats depend on them."""

from __future__ import annotations

import re

DEFAULT_VERSION = "0.5.15.post1"
_PATTERN = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.post\d+)?")


def release_of(version: str) -> tuple[int, int, int]:
    """``0.5.15.post1`` -> ``(0, 5, 15)``.

    Raises:
        ValueError: not a version of that form.
    """
    match = _PATTERN.fullmatch(version)
    if match is None:
        raise ValueError(f"not an SGLang version: '{version}' (expected like {DEFAULT_VERSION})")
    return int(match[1]), int(match[2]), int(match[3])
