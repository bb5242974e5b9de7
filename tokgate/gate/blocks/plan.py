"""Arm, BlockPlan: what every block measures, and in which order."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tokgate.config.engine import Engine
from tokgate.config.profiles import Profile
from tokgate.config.workloads import Workload

RUNS_PER_ARM = 4


@dataclass(frozen=True, slots=True)
class Arm:
    """One build, or one profile, that is measured against the others of its block.

    Attributes:
        name: ``A``, ``B``, ...; by convention ``A`` is the reference. Names a folder.
        engine: starts its servers.
        profile: what they run.
    """

    name: str
    engine: Engine
    profile: Profile


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """What every block measures. The same plan gives the same orders, whenever it is taken up.

    Attributes:
        arms: two or more, of different names. A/A calibration: twice the same engine and profile.
        workloads: measured one after the other while the servers are up.
        runs_per_arm: runs that count, of each workload on each arm.
        together: all servers of a block are up at once and their runs interleave; else each arm has
            the GPU for itself, one after the other, and a block balances nothing within itself.
        seed: of the orders, and of an emulated engine's launches; below 2**20.
        engine_flags, model: what the call gives every server besides its profile, kept so that nobody goes on with
            blocks of others; servers get them from the setup.
    """

    arms: tuple[Arm, ...]
    workloads: tuple[Workload, ...]
    seed: int
    runs_per_arm: int = RUNS_PER_ARM
    together: bool = True
    engine_flags: tuple[str, ...] = ()
    model: str | None = None

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(names) < 2 or len(set(names)) < len(names) or not all(name.isidentifier() for name in names):
            raise ValueError(f"a block has two or more arms, each with a name of its own, not {names}")
        if self.runs_per_arm < 1 or not self.workloads or not 0 <= self.seed < 2**20:
            raise ValueError("a block has workloads, runs, and a seed of 20 bits")

    def launch_order(self, number: int) -> tuple[str, ...]:
        """Names of the arms in the order in which block ``number`` launches them."""
        return tuple(self._shuffled(number, "launch"))

    def run_order(self, number: int, workload: str) -> tuple[str, ...]:
        """Names of the arms, once for each run of a workload in block ``number``.

        ABBA BAAB ... or BAAB ABBA ...: neither a drift that is steady over the block nor one that bends
        favours an arm. Where arms are not up together: all runs of one, then all of the next.
        """
        if not self.together:
            return tuple(name for name in self.launch_order(number) for _ in range(self.runs_per_arm))
        forth = self._shuffled(number, workload)
        back = forth[::-1]
        # Of four half rounds: forth, back, back, forth.
        halves = (forth, back, back, forth)
        return tuple(name for half in range(self.runs_per_arm) for name in halves[half % 4])

    def _shuffled(self, number: int, what: str) -> list[str]:
        names = [arm.name for arm in self.arms]
        random.Random(f"{self.seed}/{number}/{what}").shuffle(names)
        return names

    def facts(self) -> dict[str, object]:
        """JSON values that say what is measured; equal for equal plans."""
        besides = {"engine_flags": list(self.engine_flags), "model": self.model}
        return {
            "arms": [
                {
                    "name": arm.name,
                    "engine": arm.engine.name,
                    "kind": arm.engine.kind,
                    "sglang": arm.engine.version,
                    "lock_digest": arm.engine.lock_digest,
                    "engine_digest": arm.engine.digest,
                    "profile": arm.profile.name,
                    "profile_digest": arm.profile.digest,
                }
                for arm in self.arms
            ],
            "workloads": {workload.name: workload.digest for workload in self.workloads},
            "runs_per_arm": self.runs_per_arm,
            "together": self.together,
            "seed": self.seed,
            **{key: value for key, value in besides.items() if value},
        }
