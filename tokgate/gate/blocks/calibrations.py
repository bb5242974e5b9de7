"""Calibrations of a host: A/A blocks become sessions, stored beside the baselines, one file a metric."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from tokgate.analysis.calibration import AABlock, Calibration, Session
from tokgate.analysis.calibration_file import path_of, read_calibration, write_calibration
from tokgate.analysis.looks import History
from tokgate.config.gate import Limit
from tokgate.gate.blocks.measured import MeasuredBlock
from tokgate.gate.blocks.plan import BlockPlan
from tokgate.gate.runs import Measured
from tokgate.gate.start import STARTUP
from tokgate.host.stored_file import held
from tokgate.load.sample import Identity
from tokgate.server.launch import POLL_S


def form(runs_per_arm: int, together: bool) -> str:
    """How a block is measured, in words: blocks of another form scatter otherwise."""
    return f"{runs_per_arm} runs an arm, {'together' if together else 'one after the other'}"


def identity_of(identity: Identity, plan: BlockPlan) -> dict[str, str]:
    """What must be equal where a calibration is used."""
    return {
        "engine": identity.engine,
        "model": identity.model,
        "profile_digest": identity.profile_digest,
        "workload_digest": identity.workload_digest,
        "block": form(plan.runs_per_arm, plan.together),
    }


def from_blocks(
    plan: BlockPlan,
    blocks: Sequence[MeasuredBlock],
    limits: Mapping[str, Limit],
    started_at: str,
    profile_digest: str,
) -> dict[tuple[str, str], Calibration]:
    """What A/A blocks say, one session a metric and workload. The same blocks give the same figures.

    Args:
        plan: two arms of the same engine and profile.
        blocks: of that plan.
        limits: metrics of interest; those that every launch of a workload reports are calibrated.
        started_at: of the session, UTC, ISO 8601.
        profile_digest: of the profile as configured; servers that are up at once are launched with bounds besides.

    Returns:
        By workload and metric; start-up times under the workload ``startup``.
    """
    first, second = (arm.name for arm in plan.arms)
    found: dict[tuple[str, str], Calibration] = {}
    for workload in dict.fromkeys(name for block in blocks for name in block.arms[first].workloads):
        pairs = [
            (block.arms[first].workloads[workload], block.arms[second].workloads[workload])
            for block in blocks
            if workload in block.arms[first].workloads
        ]
        identity = replace(pairs[0][0].samples[0].identity, profile_digest=profile_digest)
        for metric, limit in limits.items():
            if not all(
                _can_be_judged(workload, side.series(metric), limit) for pair in pairs for side in pair
            ):
                continue
            session = Session(
                started_at, tuple(AABlock(_runs(a, metric), _runs(b, metric)) for a, b in pairs)
            )
            found[workload, metric] = Calibration(
                identity.host_class,
                identity.profile,
                workload,
                metric,
                limit.unit,
                limit.better,
                (session,),
                identity_of(identity, plan),
            )
    return found


def _can_be_judged(workload: str, values: Sequence[float], limit: Limit) -> bool:
    """Whether a change by the limit would show at all: start-up phases are told apart by a poll."""
    if not values or min(values) <= 0:
        return False
    return workload != STARTUP or limit.unit != "s" or fmean(values) * limit.limit_percent / 100 >= POLL_S


def _runs(measured: Measured, metric: str) -> tuple[float, ...]:
    """Six significant digits, as in baselines: a diff that people can read."""
    return tuple(float(f"{value:.6g}") for value in measured.series(metric))


def store(root: Path, found: Mapping[tuple[str, str], Calibration]) -> list[Path]:
    """Add sessions to the stored calibrations; one of something else (another model, say) is replaced.

    Returns:
        The files.

    Raises:
        SampleFault: a stored calibration cannot be read, or was edited.
        ResultsUnwritable: a file cannot be written.
    """
    paths = []
    with held(root):
        for (workload, metric), calibration in found.items():
            path = path_of(root, calibration.host_class, calibration.profile, workload, metric)
            whole = calibration
            if path.is_file():
                known = read_calibration(path)
                if not known.differences(calibration.identity):
                    whole = known.with_session(calibration.sessions[0])
            write_calibration(path, whole)
            paths.append(path)
    return paths


def known(
    root: Path, identity: Identity, metric: str, plan: BlockPlan
) -> tuple[History | None, tuple[str, ...]]:
    """The history for a metric of what has this identity, and what a reader must know of it.

    Raises:
        SampleFault: the stored calibration cannot be read.
    """
    path = path_of(root, identity.host_class, identity.profile, identity.workload, metric)
    what = f"{metric} {identity.workload}[{identity.profile}] on {identity.host_class}"
    if not path.is_file():
        return None, (f"no calibration of {what}: tokgate calibrate run",)
    calibration = read_calibration(path)
    differing = calibration.differences(identity_of(identity, plan))
    if differing:
        return None, (f"the calibration of {what} is of something else: {differing[0]}",)
    return calibration.history(), calibration.remarks(datetime.datetime.now(datetime.UTC))


def remarks(
    root: Path, host_class: str, cases: Sequence[tuple[str, str]], metric: str, now: datetime.datetime
) -> list[str]:
    """What the gate prints of the calibrations of a host class: which of its cases have none, a thin or an old one.

    Args:
        cases: (profile, workload) of the run.
        metric: that stands for all of a case.
        now: with a time zone.
    """
    missing: list[str] = []
    found: list[str] = []
    for profile, workload in cases:
        path = path_of(root, host_class, profile, workload, metric)
        if path.is_file():
            found += read_calibration(path).remarks(now)
        else:
            missing.append(f"{workload}[{profile}]")
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        found.append(
            f"no calibration on {host_class} of {len(missing)} of {len(cases)} cases ({shown}): tokgate calibrate run"
        )
    return found
