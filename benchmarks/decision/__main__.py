"""``python -m benchmarks.decision``: every rule on the same series; writes docs/explanation/decision.md.

Seeds are fixed: the same command gives the same tables. ``--quick`` uses a tenth of the series and writes
nothing unless ``--write`` is given.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.decision import rules
from benchmarks.decision.model import Scenario, batches, scenarios
from benchmarks.decision.report import OURS, Cell, page, targets
from benchmarks.page import put
from tokgate.analysis.looks import Plan
from tokgate.analysis.stored import judge_stored

VERDICTS = 40
SUITE_ALPHA = 0.01
LIMIT = 0.03
CHANGES = (0.0, -0.03, -0.10)
DOCS = Path(__file__).resolve().parents[2] / "docs" / "explanation"


@dataclass(frozen=True, slots=True)
class Size:
    """How many series.

    Attributes:
        alarms, null: without a change, at typical noise (up to 1.5 x) and otherwise.
        losses, planted: with a planted change, likewise.
        slow_rules, curve: for the rules that take long, and for each point of the curves.
    """

    alarms: int
    null: int
    losses: int
    planted: int
    slow_rules: int
    curve: int


FULL = Size(alarms=400_000, null=40_000, losses=20_000, planted=20_000, slow_rules=4_000, curve=4_000)
QUICK = Size(alarms=40_000, null=4_000, losses=20_000, planted=2_000, slow_rules=400, curve=800)


def plan(alpha: float) -> Plan:
    return Plan(limit=LIMIT, better="higher", alpha=alpha)


def rule_set(sigma: float) -> dict[str, rules.Rule]:
    """Every rule by the name it has in the tables."""
    each = SUITE_ALPHA / VERDICTS
    return {
        "tokgate, 0.01/40": rules.ours(plan(each)),
        "tokgate, 0.01": rules.ours(plan(SUITE_ALPHA)),
        "SPRT, scatter known, 0.01/40": rules.sprt(plan(each), sigma),
        "SPRT, scatter known, 0.01": rules.sprt(plan(SUITE_ALPHA), sigma),
        "tokgate without history, 0.01/40": rules.ours(plan(each), history=False),
        "5 % on a mean of 5": rules.threshold(0.05),
        "10 % on a mean of 5": rules.threshold(0.10),
        "Welch t, .05": rules.welch(0.05),
        "Mann-Whitney, .05 (benchstat)": rules.mann_whitney(0.05),
        "Mann-Whitney, .002, factor 1.1 (asv)": rules.mann_whitney(0.002, 1.1),
        "best of 3, 5 %": rules.best_of(3, 0.05),
        "cluster bootstrap, 6 launches, .01": rules.cluster_bootstrap(0.01),
    }


SLOW = ("tokgate without history, 0.01/40", "cluster bootstrap, 6 launches, .01")


def measure(scenario: Scenario, size: Size) -> dict[tuple[str, float], Cell]:
    """Every rule on one scenario: (rule, change) -> what it did."""
    sigma = scatter(scenario)
    found: dict[tuple[str, float], Cell] = {}
    many = scenario.name in ("typical", "typical, 1.5 x calibration")
    for change in CHANGES:
        series = (size.losses if change else size.alarms) if many else size.planted if change else size.null
        seen = 0
        for batch in batches(scenario, series, seed=1):
            slowed = batch.slowed(change) if change else batch
            for name, rule in rule_set(sigma).items():
                enough = size.slow_rules if name in SLOW else size.null
                if name != OURS and seen >= enough:
                    continue
                key = (name, change)
                end = rule(slowed.head(enough - seen) if name != OURS else slowed)
                found[key] = found.get(key, Cell()).plus(end, np.log1p(change))
            seen += len(batch.s0)
    return found


def scatter(scenario: Scenario) -> float:
    """True scatter of a block difference on the day that is judged, for the SPRT."""
    batch = next(batches(scenario, 10_000, seed=2, calibration=1))
    return float(np.sqrt(np.mean(batch.differences**2)))


def curves(size: Size) -> tuple[Sequence[float], Mapping[str, list[Cell]]]:
    """Every rule on typical noise over a range of true changes."""
    scenario = scenarios()[0]
    sigma = scatter(scenario)
    changes = [round(x, 4) for x in np.arange(-0.12, 0.0201, 0.005)]
    batch = next(batches(scenario, size.curve, seed=3, batch=size.curve))
    found: dict[str, list[Cell]] = {}
    for name, rule in rule_set(sigma).items():
        if name in SLOW:
            continue
        found[name] = [Cell().plus(rule(batch.slowed(change)), np.log1p(change)) for change in changes]
    return changes, found


def stored(size: Size) -> list[tuple[str, int, float, dict[str, float]]]:
    """The stored-baseline rule at alpha 0.01: (noise, sessions, change, shares of the verdicts)."""
    found = []
    for label, day in (("days differ by 0.5 %", 0.005), ("days differ by 4 %", 0.04)):
        for sessions in (3, 10, 20):
            for change in CHANGES:
                rng = np.random.default_rng(5)
                count = size.slow_rules // 4
                kinds = []
                for _ in range(count):
                    level = rng.normal(0, np.hypot(day, 0.01), sessions + 1)
                    level[-1] += np.log1p(change)
                    runs = np.exp(level[:, None] + rng.normal(0, 0.02, (sessions + 1, 5)))
                    kinds.append(
                        judge_stored(list(runs[:-1]), runs[-1], better="higher", limit=LIMIT, alpha=0.01).kind
                    )
                shares = {kind: kinds.count(kind) / count for kind in ("REGRESSION", "INCONCLUSIVE", "PASS")}
                shares["PASS"] += kinds.count("IMPROVED") / count
                found.append((label, sessions, change, shares))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decision", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the series, nothing written")
    parser.add_argument("--write", action="store_true", help="write the page and plots even with --quick")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    begin = time.monotonic()
    results = {}
    for scenario in scenarios():
        results[scenario.name] = measure(scenario, size)
        print(f"{time.monotonic() - begin:5.0f} s  {scenario.name}", flush=True)
    text = page(results, stored(size), size.alarms, LIMIT, SUITE_ALPHA, VERDICTS)
    print(text)
    if options.write or not options.quick:
        from benchmarks.decision.plots import draw
        from benchmarks.decision.report import BEGIN, END

        changes, found = curves(size)
        draw(changes, found, DOCS)
        put(DOCS / "decision.md", BEGIN, END, text)
    print(f"{time.monotonic() - begin:.0f} s")
    return 0 if all(row.met for row in targets(results, SUITE_ALPHA, VERDICTS)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
