"""Recorded A/A sessions made into calibrations, with no GPU.

::

    python -m benchmarks.decision.recorded tests/assets/h200-aa baselines
"""

from __future__ import annotations

import datetime
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokgate.config.engine import Engine
from tokgate.config.gate import load_gate
from tokgate.config.profiles import Profile, load_profiles
from tokgate.config.workloads import load_workloads
from tokgate.gate.blocks import calibrations
from tokgate.gate.blocks.calibrating import STAMP
from tokgate.gate.blocks.journal import Journal
from tokgate.gate.blocks.measured import MeasuredBlock
from tokgate.gate.blocks.neighbours import beside_others
from tokgate.gate.blocks.plan import Arm, BlockPlan

CONFIG = Path(__file__).resolve().parents[2] / "perf_tests"


def sessions(kept: Path) -> list[Path]:
    """Folders of the sessions that ``benchmarks.decision.host --keep`` wrote."""
    return sorted((kept / "calibrate").glob("*/*Z-*"))


def session(folder: Path, scratch: Path) -> tuple[BlockPlan, list[MeasuredBlock], str]:
    """Plan and blocks of a session, and when it began.

    Raises:
        UsageFault: the shipped profiles and workloads are no longer those that were measured.
    """
    copy = scratch / folder.name
    shutil.copytree(folder, copy)
    facts = json.loads((copy / "plan.json").read_text())
    arms = tuple(
        Arm(
            arm["name"],
            Engine(
                kind=arm["kind"], version=arm["sglang"], name=arm["engine"], lock_digest=arm["lock_digest"]
            ),
            _launched(load_profiles(CONFIG / "profiles.yaml").get(arm["profile"]), arm, facts["together"]),
        )
        for arm in facts["arms"]
    )
    known = load_workloads(CONFIG / "workloads.yaml", facts["arms"][0]["kind"])
    plan = BlockPlan(
        arms,
        tuple(known.get(name) for name in facts["workloads"]),
        seed=facts["seed"],
        runs_per_arm=facts["runs_per_arm"],
        together=facts["together"],
        engine_flags=tuple(facts.get("engine_flags", ())),
        model=facts.get("model"),
    )
    began = datetime.datetime.strptime(folder.name.rpartition("-")[0], STAMP).replace(tzinfo=datetime.UTC)
    now: dict[str, Any] = dict(plan.facts())
    for arm, was in zip(now["arms"], facts["arms"], strict=True):
        # The engine is taken as it was: its interpreter and its variables are not here.
        del arm["engine_digest"]
        arm.update({key: was[key] for key in ("engine_digest",) if key in was})
    return plan, Journal(copy, now).take_up(), began.isoformat(timespec="seconds")


def _launched(profile: Profile, arm: Mapping[str, Any], together: bool) -> Profile:
    return beside_others(profile, arm["kind"]) if together else profile


def pool(kept: Path, baselines: Path) -> list[Path]:
    """Write the calibrations of all sessions; those of one profile are pooled. Equal sessions give equal files."""
    limits = load_gate(CONFIG / "gate.yaml").metrics
    written: dict[Path, None] = {}
    for folder in sessions(kept):
        with tempfile.TemporaryDirectory() as scratch:
            plan, blocks, began = session(folder, Path(scratch))
        configured = load_profiles(CONFIG / "profiles.yaml").get(plan.arms[0].profile.name)
        found = calibrations.from_blocks(plan, blocks, limits, began, configured.digest)
        written |= dict.fromkeys(calibrations.store(baselines, found))
    return list(written)


if __name__ == "__main__":
    for path in pool(Path(sys.argv[1]), Path(sys.argv[2])):
        print(path)
