"""The packaged scenarios, already checked: a server starts twice as fast without pydantic and YAML.

``prepared.json`` holds every plan of every packaged scenario beside a check sum of its file. A plan is
used only while the check sum fits, so an edited scenario is read and checked again; ``python -m
tokgate.emulator.prepared`` writes the file anew, and a test compares.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

STORE = Path(__file__).parent / "prepared.json"
SCENARIOS = Path(__file__).parent / "scenarios"


def plan_of(scenario: str, condition: str) -> dict[str, Any] | None:
    """The plan of a packaged scenario's condition, or ``None`` where there is no fresh one."""
    try:
        stored = json.loads(STORE.read_text(encoding="utf-8"))[scenario]
        if stored["checksum"] != checksum(SCENARIOS / f"{scenario}.yaml"):
            return None
        plan: dict[str, Any] | None = stored["plans"].get(condition)
    except (OSError, ValueError, KeyError):
        return None
    return plan


def checksum(path: Path) -> str:
    """Check sum of a file, to notice an edit."""
    data = path.read_bytes()
    return f"{zlib.crc32(data):08x}-{len(data)}"


def prepare() -> dict[str, Any]:
    """All plans of all packaged scenarios, in the form of the file."""
    from tokgate.emulator.scenario import CONDITIONS, Scenario, names

    found = {}
    for name in names():
        scenario = Scenario(name, [])
        plans = {c: scenario.plan(c) for c in CONDITIONS if getattr(scenario.file, c) is not None}
        found[name] = {"checksum": checksum(SCENARIOS / f"{name}.yaml"), "plans": plans}
    return found


if __name__ == "__main__":
    STORE.write_text(json.dumps(prepare(), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {STORE}")
