"""What a bump costs and what it can find, before anything is started: stored figures only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from tokgate import baselines
from tokgate.analysis.calibration_file import read_calibration
from tokgate.analysis.looks import BLOCKS_MIN_CHANGE, ENOUGH_BLOCKS, History
from tokgate.analysis.power import smallest_detectable
from tokgate.bump.question import BumpAsk, Histories
from tokgate.config.workloads import Workload
from tokgate.errors import SampleFault
from tokgate.gate.start import STARTUP

ASSUMED_START_S: Mapping[str, float] = {"gpu": 90.0, "cpu": 30.0, "emulated": 0.5}
"""Where no start is stored; said wherever it is used."""

ASSUMED_RUN_S: Mapping[str, float] = {"gpu": 3.0, "cpu": 10.0, "emulated": 0.4}
STOP_S: Mapping[str, float] = {"gpu": 5.0, "cpu": 3.0, "emulated": 0.3}


@dataclass(frozen=True, slots=True)
class ProfileCost:
    """Seconds of one block of a profile.

    Attributes:
        start_s: one launch.
        runs_s: all runs of both versions, warm-up included.
        assumed: what is not stored and was assumed, in words.
    """

    profile: str
    start_s: float
    runs_s: float
    stop_s: float
    assumed: tuple[str, ...]

    def block_s(self, together: bool) -> float:
        """GPU seconds of a block."""
        return (1 if together else 2) * (self.start_s + self.stop_s) + self.runs_s


def profile_cost(ask: BumpAsk, profile: str, stored: Path, host_class: str) -> ProfileCost:
    """Costs from the stored baselines of a host class; what they lack is assumed and said."""
    kind = ask.old.kind
    assumed = []
    started = baselines.read(stored, host_class, profile, STARTUP)
    values = [value for item in (started.series("startup_s") if started else []) for value in item]
    if values:
        start_s = fmean(values)
    else:
        start_s = ASSUMED_START_S[kind]
        assumed.append(f"a start takes {start_s:g} s")
    runs_s = 0.0
    for workload in ask.workloads:
        run_s = _run_s(stored, host_class, profile, workload)
        if run_s is None:
            run_s = ASSUMED_RUN_S[kind]
            assumed.append(f"a run of {workload.name} takes {run_s:g} s")
        runs_s += 2 * (ask.gate.runs.warmup + ask.runs_per_arm) * run_s
    return ProfileCost(profile, start_s, runs_s, STOP_S[kind], tuple(assumed))


def _run_s(stored: Path, host_class: str, profile: str, workload: Workload) -> float | None:
    found = baselines.read(stored, host_class, profile, workload.name)
    speeds = [value for item in (found.series("output_tok_s") if found else []) for value in item]
    return workload.requests * workload.output_tokens / fmean(speeds) if speeds else None


def histories(
    cases: Mapping[tuple[str, str], Mapping[str, str]], folders: Sequence[Path], host_class: str
) -> tuple[Histories, list[str]]:
    """Every calibration of a host class under some folders that holds for what is to be measured.

    Args:
        cases: (profile, workload) -> identity, as far as it is known before a server is started.
        folders: searched for calibrations; a file is taken as it is.

    Returns:
        Histories, and what a reader should know of files that were left out.
    """
    found: dict[tuple[str, str, str], History] = {}
    remarks = []
    others: dict[str, list[Path]] = {}
    unmade: list[Path] = []
    now = datetime.now(UTC)
    for folder in folders:
        paths = [folder] if folder.is_file() else sorted(folder.rglob("*.yaml"))
        for path in paths:
            try:
                item = read_calibration(path)
            except SampleFault as fault:
                remarks.append(f"calibration left out: {fault.headline}")
                continue
            if item.host_class != host_class:
                if folder.is_file():
                    remarks.append(f"{path} is of host class {item.host_class}, not {host_class}: left out")
                continue
            identity = cases.get((item.profile, item.workload))
            if identity is None:
                continue
            if differing := item.differences(identity):
                others.setdefault(differing[0], []).append(path)
                continue
            history = item.history()
            if history is None:
                continue
            key = item.profile, item.workload, item.metric
            if key in found:
                remarks.append(f"calibration {path} left out: {item.name} has one already")
                continue
            found[key] = history
            if identity.get("model", "").endswith("@"):
                unmade.append(path)
            remarks += [line for line in item.remarks(now) if " days " in line]
    if unmade:
        more = f" and {len(unmade) - 1} more" if len(unmade) > 1 else ""
        remarks.append(
            f"calibration {unmade[0]}{more}: whether it is of the same pair is not known, none is made here"
        )
    for difference, left_out in others.items():
        more = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        remarks.append(f"calibration {left_out[0]}{more} left out, of something else: {difference}")
    return found, remarks


@dataclass(frozen=True, slots=True)
class Sight:
    """What some blocks can find of one question.

    Attributes:
        scatter: of a block difference, known or assumed; ``None`` when neither.
        blocks: as many as the budget, or the ask, allows.
        detectable: smallest change called at the last of them with probability 1 - beta, as a fraction; ``None``
            without a scatter, and where no change is called so soon.
        as_all: the same were they all that is asked for (``--blocks``): a test of fixed size ends them then.
        why: where the scatter comes from.
    """

    profile: str
    workload: str
    metric: str
    scatter: float | None
    blocks: int
    detectable: float | None
    as_all: float | None
    why: str


def sights(ask: BumpAsk, blocks: Mapping[str, int], assumed_scatter: float | None = None) -> list[Sight]:
    """What a budget can find.

    Args:
        blocks: profile -> blocks that the budget pays for.
        assumed_scatter: taken where no calibration is stored, as a fraction.
    """
    found = []
    for profile in ask.profiles:
        for question in ask.questions(profile.name):
            history = question.history
            n = blocks[profile.name]
            scatter = history.s0 if history else assumed_scatter
            used = history if history is not None and history.blocks >= ENOUGH_BLOCKS else None
            least = as_all = None
            if scatter is not None and n >= BLOCKS_MIN_CHANGE:
                least = smallest_detectable(n, scatter, used, question.plan)
                as_all = smallest_detectable(n, scatter, used, replace(question.plan, blocks_max=n))
            why = "no calibration"
            if history is not None:
                why = f"{history.blocks} A/A blocks"
                if used is None:
                    why += f" of {ENOUGH_BLOCKS}: judged without a history"
            elif assumed_scatter is not None:
                why = "assumed (--assume-scatter-percent)"
            found.append(
                Sight(profile.name, question.workload, question.metric, scatter, n, least, as_all, why)
            )
    return found


def affordable(ask: BumpAsk, costs: Mapping[str, ProfileCost], minutes: float | None) -> dict[str, int]:
    """Blocks of each profile that a budget pays for when it is spent evenly.

    Args:
        minutes: of GPU time; ``None`` pays for all that the ask allows.
    """
    most = ask.blocks_max if ask.tested else BLOCKS_MIN_CHANGE
    if minutes is None:
        return {profile.name: most for profile in ask.profiles}
    round_s = round_seconds(ask, costs)
    whole = min(most, int(60 * minutes // round_s)) if round_s > 0 else most
    return {profile.name: whole for profile in ask.profiles}


def round_seconds(ask: BumpAsk, costs: Mapping[str, ProfileCost]) -> float:
    """GPU seconds of one block of every profile."""
    if ask.pairing == "all":
        slowest = max((cost.start_s + cost.stop_s for cost in costs.values()), default=0.0)
        return slowest + sum(cost.runs_s for cost in costs.values())
    return sum(cost.block_s(ask.pairing == "pair") for cost in costs.values())
