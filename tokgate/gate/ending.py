"""How a run ended, where it could not say so itself: killed, or interrupted twice.

While it runs it holds its folder (flock(2)), which the kernel gives back however a process ends. So a reader can tell
a run that goes on from one whose ``run.json`` nobody will write any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokgate.errors import ResultsUnwritable
from tokgate.host.stored_file import is_held
from tokgate.load.sample import write_json

HELD = "held"
"""Key of ``run.json`` while a run goes on: whether it holds its folder."""

UNTOLD = "ended without a word"
"""Status, as it is read, of a run that says that it is running and holds its folder no more."""


def status_of(folder: Path, facts: Mapping[str, Any]) -> object:
    """The status of a run: as ``run.json`` says, or :data:`UNTOLD`.

    Of a run that does not say that it holds its folder (an older tokgate's, or on a file system without locks)
    nobody can tell whether it goes on.
    """
    status = facts.get("status")
    return UNTOLD if status == "running" and facts.get(HELD) is True and not is_held(folder) else status


def tell_end(folder: Path, why: str, signal: str, again: str) -> None:
    """Say in ``run.json`` that a run was cut short, when it had no time to: for who has seen its process end.

    Nothing is done where it did say how it ended, or where nothing can be read or written.
    """
    path = folder / "run.json"
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(facts, dict) and status_of(folder, facts) == UNTOLD:
            del facts[HELD]
            cut = {"why": why, "signal": signal, "again": again}
            write_json(path, {**facts, "interrupted": cut, "status": "interrupted"})
    except (OSError, ValueError, ResultsUnwritable):
        # Whoever reads it finds out by himself.
        return
