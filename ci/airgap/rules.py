"""What a pack leaves out: `sglang.yaml`, read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tokgate.config.document import Document, Section
from tokgate.environments.lock import normalised


class RulesFile(Section):
    """Schema of the rules."""

    python: str
    platform: str
    env: dict[str, str] = {}
    runner: list[str] = []
    left_out_cuda: list[str] = []
    left_out: list[str] = []
    prune: list[str] = []
    strip_from_mib: float = 3


@dataclass(frozen=True, slots=True)
class Rules:
    """What a pack is made for, and what it leaves out.

    Attributes:
        python: CPython's version on the runner, as in ``3.12``.
        platform: the runner's, as uv spells it.
        env: variables of the engine file.
        runner: packages that the runner has, in the version of the lock.
        left_out: further packages that are not carried.
        prune: patterns of files that are not carried.
        strip_from_bytes: shared libraries from this size on are stripped.
    """

    python: str
    platform: str
    env: Mapping[str, str]
    runner: frozenset[str]
    left_out: frozenset[str]
    prune: Sequence[str]
    strip_from_bytes: int

    def carries(self, package: str) -> bool:
        """Whether this package, in its normalised spelling, is carried."""
        return package not in self.runner and package not in self.left_out

    def prunes(self, path: str) -> bool:
        """Whether this file, by its path in site-packages, is not packed."""
        return any(fnmatch(path, pattern) for pattern in self.prune)


def load_rules(path: Path) -> Rules:
    """Read the rules.

    Raises:
        ConfigFault: every fault of the file, each with its line.
    """
    document = Document(path)
    raw = document.validate(RulesFile)
    document.check()
    return Rules(
        python=raw.python,
        platform=raw.platform,
        env=raw.env,
        runner=frozenset(map(normalised, raw.runner)),
        left_out=frozenset(map(normalised, [*raw.left_out_cuda, *raw.left_out])),
        prune=tuple(raw.prune),
        strip_from_bytes=int(raw.strip_from_mib * 2**20),
    )
