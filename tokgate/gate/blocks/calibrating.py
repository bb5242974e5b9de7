"""Calibrating: A/A blocks of a host, profile by profile, resumable, stored as calibrations after every block."""

from __future__ import annotations

import datetime
import json
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tokgate.analysis.calibration_file import read_case
from tokgate.baselines import STARTUP
from tokgate.config.profiles import Profile
from tokgate.errors import UsageFault
from tokgate.gate.blocks import calibrations
from tokgate.gate.blocks.arms import ServerBench
from tokgate.gate.blocks.bench import Bench
from tokgate.gate.blocks.neighbours import side_by_side
from tokgate.gate.blocks.plan import RUNS_PER_ARM, Arm, BlockPlan
from tokgate.gate.blocks.runner import BlockRunner
from tokgate.gate.setup import Setup
from tokgate.host.stored_file import measured_into
from tokgate.load.sample import write_json

STAMP = "%Y%m%dT%H%M%SZ"
ASKED = "asked.json"
"""File of a session: how many blocks it was begun for. With so many it is finished."""

MakeBench = Callable[[Setup, BlockPlan, Path], Bench]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What became of one profile.

    Attributes:
        blocks: A/A blocks of the session, those of earlier calls included.
        asked: how many were asked.
        folder: of the session: plan, blocks, Samples, logs.
        files: calibrations that were written; empty when no block was measured.
        remarks: what a reader should know of servers and host, one line each.
    """

    profile: str
    blocks: int
    asked: int
    folder: Path
    files: tuple[Path, ...]
    remarks: tuple[str, ...] = ()


def calibrate(
    setup: Setup,
    names: Sequence[str],
    *,
    blocks: int,
    runs_per_arm: int = RUNS_PER_ARM,
    minutes: float | None = None,
    bench: MakeBench = ServerBench,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], object] = print,
) -> list[Calibrated]:
    """Measure A/A blocks of profiles, one profile after the other. The caller holds the GPUs.

    A session that a crash or a budget cut short is taken up by the next call that asks for the same, as many blocks
    included. One that has its blocks is never added to: a new one begins.

    Args:
        setup: the checked request; ``results/calibrate`` keeps the sessions, ``baselines`` the calibrations.
        names: of profiles.
        blocks: wanted in each profile's session.
        runs_per_arm: of each workload on each launch; a verdict uses the calibration of blocks of its own form.
        minutes: budget of this call; no block is begun that would not end in time, judged by
            :attr:`~tokgate.gate.blocks.runner.BlockRunner.next_s`. The first block of a session has no known length:
            it is begun while time is left.
        bench: launches servers.
        say: told of every block.

    Raises:
        SampleFault: a stored calibration of a profile cannot be read, or was edited; nothing was started.
        HostLocked: another call measures a session of a profile; nothing was started.
        TokgateError: as :meth:`tokgate.gate.blocks.runner.BlockRunner.measure`; blocks before are stored.
    """
    began = clock()
    for name in names:
        # One that cannot be added to would else be found after its first block was measured.
        for workload in (*setup.workloads, STARTUP):
            read_case(setup.request.baselines, setup.host_classes[name], name, workload)
    done: list[Calibrated] = []
    with ExitStack() as sessions:
        # All at first: a call that would be refused at a later profile measures none.
        for name in dict.fromkeys(names):
            sessions.enter_context(measured_into(_root(setup, name)))
        for name in names:
            folder, plan = _session(setup, setup.profiles[name], runs_per_arm, blocks)
            runner = BlockRunner(plan, bench(setup, plan, folder), folder, clock=clock)
            files: list[Path] = []
            if runner.blocks:
                say(f"{name}: going on after block {len(runner.blocks)} of {blocks} ({folder})")
                files = store(setup, runner, folder)
            while len(runner.blocks) < blocks:
                if minutes is not None and clock() - began + runner.next_s >= 60 * minutes:
                    break
                block = runner.measure()
                files = store(setup, runner, folder)
                say(f"{name}: block {block.number + 1} of {blocks}: {block.seconds:.0f} s")
            told = tuple(runner.remarks)
            done.append(Calibrated(name, len(runner.blocks), blocks, folder, tuple(files), told))
    return done


def store(setup: Setup, runner: BlockRunner, folder: Path) -> list[Path]:
    """Make the session's calibrations from its blocks, as often as wanted, and store them."""
    started_at = datetime.datetime.strptime(folder.name, STAMP).replace(tzinfo=datetime.UTC)
    found = calibrations.from_blocks(
        runner.plan,
        runner.blocks,
        setup.gate.metrics,
        started_at.isoformat(timespec="seconds"),
        setup.profiles[runner.plan.arms[0].profile.name].digest,
    )
    return calibrations.store(setup.request.baselines, found)


def _session(setup: Setup, profile: Profile, runs_per_arm: int, blocks: int) -> tuple[Path, BlockPlan]:
    """The session to be taken up, or a new one, and its plan."""
    arms, together = side_by_side(setup, [Arm(name, setup.engine, profile) for name in "AB"])
    plan = BlockPlan(
        arms,
        tuple(setup.workloads.values()),
        seed=secrets.randbelow(2**20),
        runs_per_arm=runs_per_arm,
        together=together,
        engine_flags=setup.request.engine_flags,
        model=setup.request.model,
    )
    root = _root(setup, profile.name)
    for folder in sorted(root.glob("*T*Z"), reverse=True)[:1]:
        try:
            known = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
            same = replace(plan, seed=int(known["seed"]))
            asked = json.loads((folder / ASKED).read_text(encoding="utf-8"))["blocks"]
        except (OSError, ValueError, KeyError, TypeError):
            break
        is_short = len(list(folder.glob("blocks/*.json"))) < blocks == asked
        if is_short and json.loads(json.dumps(same.facts())) == known:
            return folder, same
    folder = root / f"{datetime.datetime.now(datetime.UTC):{STAMP}}"
    if folder.exists():
        raise UsageFault(f"{folder} exists: a session begins once a second")
    write_json(folder / ASKED, {"blocks": blocks})
    return folder, plan


def _root(setup: Setup, name: str) -> Path:
    """Where the sessions of a profile are."""
    return setup.request.results / "calibrate" / setup.host_classes[name] / name
