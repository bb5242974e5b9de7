"""One finding about a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "absent", "warn", "unfit"]
ORDER: tuple[Level, ...] = ("ok", "absent", "warn", "unfit")


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was seen, and what mends it.

    Attributes:
        name: ``gpu0.free``, ``ptrace``, ``disk``.
        level: ``unfit``: a gate must not measure here; ``warn``: it may, with wider noise or less evidence;
            ``absent``: this host does not have it, so nothing is known of it.
        seen: with figures and units.
        mend: a command, or what to do; empty when there is nothing to mend.
    """

    name: str
    level: Level
    seen: str
    mend: str = ""
