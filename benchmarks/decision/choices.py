"""``python -m benchmarks.decision.choices``: what each number of the sequential test was chosen against.

Prints one line a variant: false alarms as a multiple of alpha at 1, 1.5 and 3 times the calibrated noise, the
share of 3 % losses found, and blocks against the SPRT that knows the scatter. Seeds are fixed.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from benchmarks.decision.__main__ import LIMIT, SUITE_ALPHA, VERDICTS, plan, scatter
from benchmarks.decision.model import Scenario, Series, batches, scenarios, trimmed
from benchmarks.decision.rules import sprt
from tokgate.analysis.looks import NU0_MAX, TUNING, Tuning, walk

FIRST_DESIGN = Tuning(
    steps=(1.0, 2.0, 4.0, 8.0),
    weights=(0.55, 0.25, 0.15, 0.05),
    pass_steps=(1.0, 2.0, 4.0),
    pass_weights=(0.75, 0.20, 0.05),
    final_alpha=0.0,
    final_beta=0.0,
    widen_from=3,
)
VARIANTS: dict[str, tuple[Tuning, float]] = {
    "as chosen": (TUNING, NU0_MAX),
    "first design (nu0 8, no final test)": (FIRST_DESIGN, 8),
    "nu0 8": (TUNING, 8),
    "nu0 4": (TUNING, 4),
    "no final test": (replace(TUNING, final_alpha=0.0, final_beta=0.0), NU0_MAX),
    "all beta before the final test": (replace(TUNING, final_beta=0.0), NU0_MAX),
    "weights of the first design": (
        replace(TUNING, steps=FIRST_DESIGN.steps, weights=FIRST_DESIGN.weights),
        NU0_MAX,
    ),
    "no alternative beyond 8 limits": (
        replace(TUNING, steps=FIRST_DESIGN.steps, weights=(0.65, 0.20, 0.10, 0.05)),
        NU0_MAX,
    ),
    "widen from 3 blocks": (replace(TUNING, widen_from=3), NU0_MAX),
    "two fifths of beta for the final test": (replace(TUNING, final_beta=0.4), NU0_MAX),
    "no overshoot correction": (replace(TUNING, overshoot=0.0), NU0_MAX),
}
FACTORS = (1.0, 1.5, 3.0)


def series(factor: float, count: int) -> Series:
    """Typical noise at a factor on the calibration, as one batch."""
    scenario = Scenario(f"choices {factor:g}", today=factor)
    parts = list(batches(scenario, count, seed=9))
    return Series(
        np.concatenate([part.differences for part in parts]),
        np.concatenate([part.s0 for part in parts]),
        parts[0].reference,
        parts[0].candidate,
    )


def arms(count: int = 30_000) -> list[str]:
    """Scatter of a block difference by runs an arm and by share trimmed, as a Markdown table."""
    shares = (0.0, 0.25, 0.5, 0.75)
    lines = [
        "| noise | runs an arm | " + " | ".join(f"trim {100 * share:.0f} %" for share in shares) + " |",
        "|---|---|" + "---|" * len(shares),
    ]
    for scenario in scenarios():
        if scenario.today != 1:
            continue
        for runs in (4, 8):
            a, b = scenario.block(np.random.default_rng(3), count, runs, 1.0)
            found = [float(np.std(trimmed(b, share) - trimmed(a, share))) for share in shares]
            lines.append(
                f"| {scenario.name} | {runs} | " + " | ".join(f"{100 * x:.2f} %" for x in found) + " |"
            )
    return lines


LAUNCH_S, RUN_S = 90.0, 2.5
"""Two servers started together on the H200, ready; one run of 1,024 tokens at batch 1 there."""


def minutes(count: int = 4_000) -> list[str]:
    """GPU minutes until a verdict by runs an arm and by workloads that a block measures, as a Markdown table."""
    asked = plan(SUITE_ALPHA / VERDICTS)
    runs_tried, suites = (3, 4, 6, 8, 12, 16), (1, 3, 6)
    lines = [
        "| noise | runs an arm | blocks, no change | at -3 % | "
        + " | ".join(f"minutes, {n} workload{'s' if n > 1 else ''}" for n in suites)
        + " |",
        "|---|---|---|---|" + "---|" * len(suites),
    ]
    for scenario in scenarios():
        if scenario.today != 1:
            continue
        for runs in runs_tried:
            rng = np.random.default_rng(5)
            columns = []
            for _ in range(20 + asked.blocks_max):
                a, b = scenario.block(rng, count, runs, 1.0)
                columns.append(trimmed(b) - trimmed(a))
            d = np.stack(columns, axis=1)
            s0 = np.sqrt(np.mean(d[:, :20] ** 2, axis=1))
            blocks = [
                float(np.mean(walk(d[:, 20:] + shift, asked, s0).blocks)) for shift in (0.0, np.log1p(-LIMIT))
            ]
            each = [(LAUNCH_S + 2 * runs * RUN_S * number) / 60 for number in suites]
            spent = " | ".join(f"{blocks[0] * m:.0f} / {blocks[1] * m:.0f}" for m in each)
            lines.append(f"| {scenario.name} | {runs} | {blocks[0]:.1f} | {blocks[1]:.1f} | {spent} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decision.choices", description=__doc__)
    parser.add_argument("--series", type=int, default=60_000, help="without a change; a sixth of it with one")
    parser.add_argument(
        "--arms", action="store_true", help="scatter of a block by runs an arm and trim instead"
    )
    parser.add_argument("--minutes", action="store_true", help="GPU minutes by runs an arm instead")
    options = parser.parse_args()
    if options.minutes:
        print("\n".join(minutes()))
        return 0
    if options.arms:
        print("\n".join(arms()))
        return 0
    count = options.series
    asked = plan(SUITE_ALPHA / VERDICTS)
    print(f"limit {LIMIT:g}, alpha {asked.alpha:g}, beta {asked.beta:g}, {count} series")
    print(
        "| variant | noise | false alarms / alpha | -3 % found | -3 % passed | blocks: none (x SPRT) | -3 % |"
    )
    print("|---|---|---|---|---|---|---|")
    for factor in FACTORS:
        null = series(factor, count)
        lost = null.head(count // 6).slowed(-LIMIT)
        sigma = scatter(Scenario("choices", today=factor))
        known = [float(sprt(asked, sigma)(item).blocks.mean()) for item in (null.head(20_000), lost)]
        for name, (tuning, nu0) in VARIANTS.items():
            none, loss = (walk(item.differences, asked, item.s0, nu0, tuning) for item in (null, lost))
            cost = [float(np.mean(item.blocks)) for item in (none, loss)]
            print(
                f"| {name} | {factor:g} x | {np.mean(none.regression) / asked.alpha:.2f} "
                f"| {100 * np.mean(loss.regression):.1f} % | {100 * np.mean(loss.passed):.1f} % "
                f"| {cost[0]:.2f} ({cost[0] / known[0]:.2f}) | {cost[1]:.2f} ({cost[1] / known[1]:.2f}) |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
