"""How long a pass takes: the scenario's costs, times a launch's factor, times a run's factor.

A run, as the server sees it, begins with the first request after a `/flush_cache`, or after the server
was idle for the scenario's ``run_gap_s``. Health probes and the server's own warm-up are no runs.
"""

from __future__ import annotations

import math
import random
from typing import Any


class Timing:
    """Durations of one launch.

    Args:
        plan: from :meth:`tokgate.emulator.scenario.Scenario.plan`.
        launch_seed: draws the launch's factor and the scatter of its runs; ``None`` for the scenario's
            own seed, with which everything repeats and the launch's factor is 1.
        slow: factor of the ``slow`` fault, 1.0 without it.
    """

    def __init__(self, plan: dict[str, Any], launch_seed: int | None, slow: float = 1.0) -> None:
        self._costs = plan["costs"]
        self._noise = self._costs["noise"]
        self._repeats = launch_seed is None
        seed = plan["seed"] if launch_seed is None else launch_seed
        self._random = random.Random(f"{plan['condition']}/{seed}")
        launch = 0.0 if self._repeats else self._random.gauss(0.0, 1.0) * self._costs["launch_sd"]
        self._fixed = slow * math.exp(launch)
        self._runs = 0
        self._run = 1.0
        self.speculative = self._costs["step_ms"] is None
        if self.speculative:
            self.kernels_ms = {
                "verify": self._costs["verify_ms"],
                "draft": self._costs["draft_ms"],
                "draft_extend": self._costs["draft_extend_ms"],
            }
            self.cycle_ms = sum(self.kernels_ms.values()) + self._costs["gap_ms"]
        else:
            self.kernels_ms = {"decode": self._costs["step_ms"] - self._costs["gap_ms"]}
            self.cycle_ms = self._costs["step_ms"]

    def new_run(self) -> None:
        """Draw the next run's factor."""
        kind, sd = self._noise["kind"], self._noise["sd"]
        draw = self._random.gauss(0.0, 1.0)
        if kind == "recorded" and self._repeats:
            speeds = self._noise["speeds"]
            self._run = 1.0 / speeds[self._runs % len(speeds)]
        elif kind in ("recorded", "lognormal"):
            self._run = math.exp(draw * sd)
        elif kind == "one-sided":
            self._run = 1.0 + abs(draw) * sd
        self._runs += 1

    def step_s(self, running: int) -> float:
        """Length of a decode step (a whole cycle under speculation) with that many requests."""
        length = self.cycle_ms / 1e3 * (1.0 + self._costs["batch_percent"] / 100.0 * (running - 1))
        jitter = self._costs["step_jitter"]
        if jitter:
            length *= math.exp(self._random.gauss(0.0, jitter) - jitter * jitter / 2)
        return float(length * self._fixed * self._run)

    def prefill_s(self, tokens: int) -> float:
        """Length of a prefill of that many tokens."""
        length = self._costs["prefill_ms"] / 1e3 + self._costs["prefill_us_per_token"] / 1e6 * tokens
        return float(length * self._fixed * self._run)
