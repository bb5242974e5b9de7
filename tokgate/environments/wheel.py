"""A wheel of one's own: built from a commit or a folder, or given as a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokgate.environments.lock import normalised


@dataclass(frozen=True, slots=True)
class LocalWheel:
    """A wheel of one's own in the place of a package of the index.

    Attributes:
        path: the file.
        sha256: its digest, hexadecimal.
    """

    path: Path
    sha256: str

    @property
    def name(self) -> str:
        """The package's name, normalised."""
        return normalised(self.path.name.split("-")[0])

    @property
    def version(self) -> str:
        """The package's version, as in the file's name."""
        return self.path.name.split("-")[1]
