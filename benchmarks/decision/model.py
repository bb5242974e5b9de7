"""Series of blocks whose truth is known: simulated noise, and recorded H200 runs with planted slow-downs.

One launch has a level of its own (and, in some scenarios, a second mode), its runs scatter about it, some
runs are slowed down by an outlier, and the host drifts across a block. All in ln(tok/s), higher is better.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokgate.analysis.blocks import TRIM_SHARE

Values = NDArray[np.float64]
RECORDED = Path(__file__).resolve().parent / "h200_aa.json"
RUNS_PER_ARM = 4
LONG_BLOCKS = 6
LONG_RUNS = 12


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of noise. Shares of speed: 0.01 is 1 %.

    Attributes:
        launch: standard deviation between launches.
        run: standard deviation between runs of a launch.
        drift: change of the host's speed over one block.
        outlier_share, outlier: share of runs that are slowed down, and by how much at most.
        second_mode_share, second_mode: share of launches that come up slower, and by how much.
        today: factor on all of it on the day that is judged; the calibration is at 1.
        recorded: launches to resample instead, in tok/s.
    """

    name: str
    launch: float = 0.01
    run: float = 0.02
    drift: float = 0.0
    outlier_share: float = 0.0
    outlier: float = 0.0
    second_mode_share: float = 0.0
    second_mode: float = 0.0
    today: float = 1.0
    recorded: Sequence[Sequence[float]] = field(default=())

    def launches(self, rng: np.random.Generator, series: int, runs: int, factor: float) -> Values:
        """Runs of one launch for each series, ln speed, shape (series, runs)."""
        if self.recorded:
            data = np.log(np.asarray(self.recorded))
            data = data - data.mean()
            which = rng.integers(len(data), size=(series, 1))
            return np.asarray(data[which, rng.integers(data.shape[1], size=(series, runs))] * factor)
        x = rng.standard_normal((series, runs)) * (self.run * factor)
        x += rng.standard_normal((series, 1)) * (self.launch * factor)
        if self.outlier_share:
            hit = rng.random((series, runs)) < self.outlier_share
            x -= hit * rng.random((series, runs)) * self.outlier * factor
        if self.second_mode_share:
            x -= (rng.random((series, 1)) < self.second_mode_share) * self.second_mode * factor
        return x

    def block(self, rng: np.random.Generator, series: int, runs: int, factor: float) -> tuple[Values, Values]:
        """Reference and candidate of one block, in random order (ABBA or BAAB), no effect yet."""
        a, b = (self.launches(rng, series, runs, factor) for _ in range(2))
        if self.drift:
            # A straight drift over the block; ABBA gives both arms the same mean position but not the
            # same positions.
            slope = rng.standard_normal((series, 1)) * self.drift * factor
            inner = (np.arange(runs) - (runs - 1) / 2) / (2 * runs)
            outer = np.where(inner < 0, inner - 0.25, inner + 0.25)
            flip = rng.random((series, 1)) < 0.5
            a = a + slope * np.where(flip, inner, outer)
            b = b + slope * np.where(flip, outer, inner)
        return a, b


def trimmed(log_runs: Values, share: float = TRIM_SHARE) -> Values:
    """ln of the trimmed mean of each row: what tokgate.analysis.blocks.arm computes, vectorised."""
    runs = np.exp(np.sort(log_runs, axis=1))
    weights = np.clip(np.arange(1, runs.shape[1] + 1) - share * runs.shape[1], 0, 1)
    return np.asarray(np.log(runs @ weights / weights.sum()))


@dataclass(frozen=True, slots=True)
class Series:
    """A batch of series without an effect; :meth:`slowed` plants one.

    Attributes:
        differences: block differences, (series, blocks).
        s0: scatter that a calibration of 20 A/A blocks found beforehand, (series,).
        reference, candidate: ln runs of the first blocks for rules that look at runs, each
            (series, LONG_BLOCKS, LONG_RUNS); the first RUNS_PER_ARM of them made the differences.
    """

    differences: Values
    s0: Values
    reference: Values
    candidate: Values

    def slowed(self, change: float) -> Series:
        """The same series with a true change planted in the candidate (-0.03 is 3 % slower)."""
        shift = math.log1p(change)
        return Series(self.differences + shift, self.s0, self.reference, self.candidate + shift)

    def head(self, count: int) -> Series:
        """The first so many series."""
        return Series(
            self.differences[:count], self.s0[:count], self.reference[:count], self.candidate[:count]
        )


def batches(
    scenario: Scenario,
    series: int,
    seed: int,
    *,
    blocks: int = 40,
    calibration: int = 20,
    batch: int = 10_000,
) -> Iterator[Series]:
    """Series in batches; the same seed gives the same series."""
    rng = np.random.default_rng([seed, *scenario.name.encode()])
    for start in range(0, series, batch):
        size = min(batch, series - start)
        square = np.zeros(size)
        for _ in range(calibration):
            a, b = scenario.block(rng, size, RUNS_PER_ARM, 1.0)
            square += (trimmed(b) - trimmed(a)) ** 2
        columns, longs = [], []
        for k in range(blocks):
            long = k < LONG_BLOCKS
            a, b = scenario.block(rng, size, LONG_RUNS if long else RUNS_PER_ARM, scenario.today)
            if long:
                longs.append((a, b))
            columns.append(trimmed(b[:, :RUNS_PER_ARM]) - trimmed(a[:, :RUNS_PER_ARM]))
        yield Series(
            np.stack(columns, axis=1),
            np.sqrt(square / calibration),
            np.stack([a for a, _ in longs], axis=1),
            np.stack([b for _, b in longs], axis=1),
        )


def scenarios() -> list[Scenario]:
    """All kinds of noise of the benchmark, the typical one first."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))["launches"]
    quiet = [runs for runs in recorded if np.mean(runs) > 0.9 * np.median(recorded)]
    return [
        Scenario("typical"),
        Scenario("typical, 1.5 x calibration", today=1.5),
        Scenario("typical, 2 x calibration", today=2.0),
        Scenario("typical, 3 x calibration", today=3.0),
        Scenario("quiet", launch=0.003, run=0.005),
        Scenario("loud", launch=0.02, run=0.08),
        Scenario("drift 5 % a block", drift=0.05),
        Scenario("outliers, 10 % of runs up to 30 % slow", outlier_share=0.1, outlier=0.3),
        Scenario("two modes, 20 % of launches 3 % slow", second_mode_share=0.2, second_mode=0.03),
        Scenario("H200 recorded", recorded=recorded),
        Scenario("H200 recorded, slow launch void", recorded=quiet),
    ]
