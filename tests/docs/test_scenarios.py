"""The emulated engines that the docs show exist."""

from __future__ import annotations

import re
from pathlib import Path

from tokgate.emulator import scenario

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"(?:emulated:|baselines/emulated-|\bon emulated-)([a-z][a-z-]*)")
SCENARIOS = {path.stem for path in (Path(scenario.__file__).parent / "scenarios").glob("*.yaml")}


def test_every_scenario_and_emulated_host_class_named_exists() -> None:
    named = {
        (page.name, found)
        for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        for found in NAMED.findall(page.read_text(encoding="utf-8"))
    }
    # The control: they are found where they are known to stand.
    assert {("tutorial.md", "founding"), ("calibrate_a_host.md", "steady")} <= named
    assert {(page, found) for page, found in named if found not in SCENARIOS} == set()
