"""Lock files: every package of an environment, pinned, with the hashes of its files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)")


@dataclass(frozen=True, slots=True)
class Lock:
    """A parsed lock.

    Attributes:
        versions: package name, normalised, to its version.
        blocks: package name to its lines as pip reads them, hashes included.
        digest: SHA-256 of the text, hexadecimal.
    """

    versions: Mapping[str, str]
    blocks: Mapping[str, str]
    digest: str

    @classmethod
    def parse(cls, text: str) -> Lock:
        """Read a lock as `ci/lock_engine.py` writes it.

        Raises:
            ValueError: a line is not ``name==version`` with hashes.
        """
        versions: dict[str, str] = {}
        blocks: dict[str, str] = {}
        body = "\n".join(line for line in text.splitlines() if line.strip() and not line.startswith("#"))
        for block in re.split(r"\n(?=\S)", body):
            found = REQUIREMENT.match(block)
            if found is None or "--hash=sha256:" not in block:
                raise ValueError(f"not a pinned and hashed requirement: {block.splitlines()[0]!r}")
            name = normalised(found["name"])
            versions[name] = found["version"]
            blocks[name] = block
        return cls(versions, blocks, hashlib.sha256(text.encode()).hexdigest())

    def requirements(self, names: Iterable[str]) -> str:
        """A requirements file for these packages only."""
        return "\n".join(self.blocks[name] for name in names) + "\n"


def normalised(name: str) -> str:
    """A package name in the one spelling that the packaging standards (PEP 503) compare by."""
    return re.sub(r"[-_.]+", "-", name).lower()
