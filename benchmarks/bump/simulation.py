"""How often ``tokgate bump`` alarms falsely and ``tokgate bisect`` errs, on a virtual clock with the H200's noise.

    python -m benchmarks.bump.simulation [--seeds 100] [--bumps 200] [--write]

Drives the very campaign and bisection that real servers are driven by; only the servers are numbers
(:mod:`benchmarks.bump.virtual_servers`). ``--write`` puts the tables into docs/explanation/bump.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.bump.virtual_servers import Clock, Noise, large, maker, small
from benchmarks.page import put
from tokgate.bump.bisection import Bisection, Result
from tokgate.bump.campaign import Campaign
from tokgate.bump.question import BumpAsk
from tokgate.bump.steps import FAILURE, Prober, Sought
from tokgate.bump.verdicts import verdicts
from tokgate.config.engine import Engine, emulated_engine
from tokgate.config.gate import load_gate
from tokgate.config.profiles import Profile, load_profiles
from tokgate.config.workloads import Workload, load_workloads
from tokgate.verdict import Kind

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "perf_tests"
DOCUMENT = ROOT / "docs" / "explanation" / "bump.md"
BEGIN, END = "<!-- benchmarks.bump.simulation: begin -->", "<!-- benchmarks.bump.simulation: end -->"
SPEED = "output_tok_s"
JUDGED = (SPEED, "startup_s")
VERSIONS = tuple(f"0.6.{number}" for number in range(1, 11))
"""Ten fake versions."""


def engine(version: str) -> Engine:
    """A name for virtual servers of a version."""
    return replace(emulated_engine(), name=f"virtual-{version}", version=version)


def configuration() -> tuple[dict[str, Profile], Workload]:
    """The profiles of perf_tests, and its smallest workload."""
    profiles = dict(load_profiles(CONFIG / "profiles.yaml").profiles)
    return profiles, load_workloads(CONFIG / "workloads.yaml", "gpu").get("chat-bs1")


def ask_of(
    seed: int, *, profiles: Sequence[str] = ("baseline", "eagle3-graphs"), blocks: int = 12
) -> BumpAsk:
    """A bump of 0.6.1 to 0.6.2 on output_tok_s."""
    known, workload = configuration()
    return BumpAsk(
        old=engine(VERSIONS[0]),
        new=engine(VERSIONS[1]),
        profiles=tuple(known[name] for name in profiles),
        workloads=(workload,),
        metrics=("output_tok_s",),
        gate=load_gate(CONFIG / "gate.yaml"),
        seed=seed,
        blocks_max=blocks,
    )


@dataclass(frozen=True, slots=True)
class Bumps:
    """Many bumps with one true change.

    Attributes:
        change: true, as a fraction.
        alarmed: bumps with any REGRESSION, start-up included.
        passed: bumps without one, in which the speed of every profile is green.
        blocks: measured a bump, both profiles together, mean.
        minutes: GPU minutes a bump, mean.
    """

    change: float
    bumps: int
    alarmed: int
    passed: int
    blocks: float
    minutes: float

    @property
    def undecided(self) -> int:
        """Neither: the speed of some profile is INCONCLUSIVE."""
        return self.bumps - self.alarmed - self.passed


def bumps(count: int, change: float = 0.0, *, blocks: int = 12, noise: Noise | None = None) -> Bumps:
    """Simulate bumps; seeds from 0."""
    alarmed = passed = measured = 0
    minutes = 0.0
    for seed in range(count):
        clock = Clock()
        make = maker(clock, speed={VERSIONS[1]: 1 + change}, noise=noise)
        campaign = Campaign(ask_of(seed, blocks=blocks), make, None, clock=clock)
        campaign.run()
        # Virtual servers have speed and a start alone: no counts, graphs or answers to be judged.
        found = [v for v in verdicts(campaign) if v.evidence.get("metric") in JUDGED]
        speeds = {v.kind for v in found if v.evidence["metric"] == SPEED}
        if any(v.kind is Kind.REGRESSION for v in found):
            alarmed += 1
        elif speeds <= {Kind.PASS, Kind.IMPROVED}:
            passed += 1
        measured += sum(len(group.runner.blocks) for group in campaign.groups)
        minutes += clock.now_s / 60 / count
    return Bumps(change, count, alarmed, passed, measured / count, minutes)


def bisection(seed: int, *, bad: int, change: float, metric: str = "output_tok_s") -> tuple[Result, float]:
    """One bisection over :data:`VERSIONS`, and its GPU minutes.

    Args:
        bad: index of the first bad version.
        change: of it and all later ones, as a fraction; for ``failure`` they hang instead.
    """
    known, workload = configuration()
    clock = Clock()
    slow = {} if metric == FAILURE else {version: 1 + change for version in VERSIONS[bad:]}
    make = maker(clock, speed=slow, hangs=VERSIONS[bad:] if metric == FAILURE else ())
    sought = Sought(
        metric=metric,
        better="higher",
        limit=0.03,
        profile=known["baseline"],
        workload=workload,
        seed=seed,
    )
    prober = Prober(sought, engine(VERSIONS[0]), engine, make, None, clock=clock)
    result = Bisection(VERSIONS, sought, prober, None).run()
    return result, clock.now_s / 60


@dataclass(frozen=True, slots=True)
class Bisections:
    """Many bisections of one fault, the first bad version in every place in turn."""

    what: str
    count: int
    right: int
    wrong: int
    steps: float
    blocks: float
    minutes: float

    @property
    def open(self) -> int:
        """Ended without an answer: said so, and not wrong."""
        return self.count - self.right - self.wrong


def bisections(count: int, what: str, change: float = 0.0, metric: str = "output_tok_s") -> Bisections:
    """Simulate bisections; seeds from 0."""
    right = wrong = 0
    steps = blocks = minutes = 0.0
    for seed in range(count):
        bad = 1 + seed % (len(VERSIONS) - 1)
        result, spent = bisection(seed, bad=bad, change=change, metric=metric)
        first = result.found.first_bad if result.found else None
        right += first == VERSIONS[bad]
        wrong += first not in (None, VERSIONS[bad])
        steps += len(result.steps) / count
        blocks += result.blocks / count
        minutes += spent / count
    return Bisections(what, count, right, wrong, steps, blocks, minutes)


def page(found: Sequence[Bisections], told: Mapping[str, Iterable[Bumps]]) -> str:
    """All tables as Markdown."""
    lines = [
        f"Made by `python -m benchmarks.bump.simulation`: launches and runs resampled from "
        f"`benchmarks/decision/h200_aa.json` (one launch of five is 19 % slower), "
        f"a start of {small().start_s:.0f} s for both versions at once, no calibration.",
        "",
        f"Bisection of {len(VERSIONS)} versions, the first bad one in every place in turn:",
        "",
        "| fault | seeds | right | wrong | no answer | steps | blocks | GPU minutes |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {b.what} | {b.count} | {b.right} | {b.wrong} | {b.open} | {b.steps:.1f} | {b.blocks:.1f} "
        f"| {b.minutes:.0f} |"
        for b in found
    ]
    for what, bumps_ in told.items():
        lines += [
            "",
            f"Bumps of two profiles, at most 12 blocks each, {what}:",
            "",
            "| true change of speed | bumps | any REGRESSION | speed green | undecided | blocks | GPU minutes |",
            "|---:|---:|---:|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {100 * t.change:+.0f} % | {t.bumps} | {t.alarmed} | {t.passed} | {t.undecided} | {t.blocks:.1f} "
            f"| {t.minutes:.0f} |"
            for t in bumps_
        ]
    return "\n".join(lines)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--bumps", type=int, default=200)
    parser.add_argument("--write", action="store_true", help=f"into {DOCUMENT.relative_to(ROOT)}")
    asked = parser.parse_args()
    found = [
        bisections(asked.seeds, "a hang", metric=FAILURE),
        bisections(asked.seeds, "40 % slower", -0.40),
        bisections(asked.seeds, "25 % slower", -0.25),
        bisections(asked.seeds, "10 % slower", -0.10),
    ]
    of_8b = large()
    told = {
        "the 1.1 B pair": [bumps(asked.bumps, change) for change in (0.0, -0.25, -0.50)],
        f"the 8 B pair ({len(of_8b.launches)} launches, [below](#on-an-h200))": [
            bumps(asked.bumps, change, noise=of_8b) for change in (0.0, -0.02, -0.05, -0.10)
        ],
    }
    text = page(found, told)
    print(text)
    if asked.write:
        put(DOCUMENT, BEGIN, END, text)


if __name__ == "__main__":
    main()
