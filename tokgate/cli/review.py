"""How a person reviews files that were written: by git, where they stand in a repository."""

from __future__ import annotations

import shlex
from pathlib import Path


def review_words(folder: Path) -> str:
    """``review with: git ...``, new files included; without git where the folder is in no repository."""
    repository = _repository(folder)
    if repository is None:
        return f"review them in {folder}, which is in no git repository"
    git, place = "git", shlex.quote(str(folder))
    if repository != _repository(Path.cwd()):
        git, place = f"git -C {shlex.quote(str(repository))}", shlex.quote(str(folder.resolve()))
    # A file that git does not know is no difference to it.
    return f"review with: {git} add -N {place} && {git} diff {place}"


def _repository(folder: Path) -> Path | None:
    """The working tree that a folder is in; ``.git`` is a file in a linked one."""
    place = folder.resolve()
    return next((above for above in (place, *place.parents) if (above / ".git").exists()), None)
