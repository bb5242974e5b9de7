"""Upkeep: what a gate says at its end of its own stored files: orphan baselines, missing or old calibrations."""

from __future__ import annotations

import datetime

from tokgate import baselines
from tokgate.config.workloads import load_workloads
from tokgate.errors import UsageFault
from tokgate.gate.blocks import calibrations
from tokgate.gate.setup import Setup
from tokgate.gate.start import STARTUP, STARTUP_TOGETHER

STANDS_FOR = "output_tok_s"
"""The metric whose calibration stands for all of a case: blocks calibrate all of them at once."""


def remarks(setup: Setup, now: datetime.datetime | None = None) -> list[str]:
    """One line each. Of an emulated engine, whose launches do not differ, calibrations are told only where
    blocks are to be judged by them.

    Args:
        now: with a time zone; the present when not given.
    """
    found = _orphans(setup)
    if setup.engine.kind != "emulated" or setup.request.budget_minutes is not None:
        try:
            for host_class, profiles in _by_class(setup).items():
                cases = [(profile, workload) for profile in profiles for workload in setup.workloads]
                at = now or datetime.datetime.now(datetime.UTC)
                found += calibrations.remarks(setup.request.baselines, host_class, cases, STANDS_FOR, at)
        except UsageFault as fault:
            found.append(f"calibration: {fault.headline}")
    return found


def _by_class(setup: Setup) -> dict[str, list[str]]:
    """Profiles of this run by the class under which their figures are stored."""
    found: dict[str, list[str]] = {}
    for name in setup.profile_names():
        found.setdefault(setup.host_classes[name], []).append(name)
    return found


def _orphans(setup: Setup) -> list[str]:
    """Baselines of profiles and workloads that the configuration no longer has, whatever this run selected."""
    known = load_workloads(setup.request.folder / "workloads.yaml", setup.engine.kind).workloads
    cases = [
        (profile, name)
        for profile in setup.catalogue.profiles
        for name in (*known, STARTUP, STARTUP_TOGETHER)
    ]
    found = [
        path
        for host_class in _by_class(setup)
        for path in baselines.orphans(setup.request.baselines, host_class, cases)
    ]
    if not found:
        return []
    shown = ", ".join(str(path) for path in found[:3]) + (", ..." if len(found) > 3 else "")
    word = "baseline belongs" if len(found) == 1 else "baselines belong"
    return [f"{len(found)} stored {word} to no profile and workload of the configuration: {shown}"]
