"""A change of speed against the stored baseline, laid to acceptance or to the cost of a cycle."""

from __future__ import annotations

from tokgate.analysis.speculation import Attribution, SpeculativeRuns, attribute
from tokgate.baselines import Baseline
from tokgate.gate.runs import Measured

RATE, ACCEPTANCE = "output_tok_s", "accept_length"
_NAMES = {
    "acceptance": "acceptance alone",
    "cycle time": "the cost of a cycle alone",
    "both": "acceptance and the cost of a cycle",
    "rest": "neither acceptance nor the cycle",
    "none": "nothing beyond the limit",
}


def attribution(
    measured: Measured, baseline: Baseline, *, concurrency: int, limit: float
) -> Attribution | None:
    """What a change of ``output_tok_s`` is made of; ``None`` without accept lengths on both sides.

    A cycle here is the effective one, accept length x streams / rate: prefill and gaps are in it, so that
    both factors make up the whole change.

    Args:
        concurrency: streams of the workload.
        limit: a part that moves the rate by less, as a fraction, is no cause.
    """
    pairs = [
        (speed, length)
        for session in baseline.sessions
        for speed, length in zip(
            session.samples.get(RATE, ()), session.samples.get(ACCEPTANCE, ()), strict=False
        )
    ]
    now = [
        (sample.metrics[RATE], sample.metrics[ACCEPTANCE])
        for sample in measured.samples
        if RATE in sample.metrics and ACCEPTANCE in sample.metrics
    ]
    if not pairs or not now:
        return None
    return attribute(_runs(pairs, concurrency), _runs(now, concurrency), limit=limit)


def attribution_lines(found: Attribution) -> list[str]:
    """The parts with their intervals, and what the change is laid to."""
    parts = [f"of it, {part.text()}" for part in (found.acceptance, found.cycle)]
    lines = [*parts, f"laid to {_NAMES[found.cause]}"]
    if found.masked:
        lines.append(
            f"masked: acceptance and the cycle moved against each other; the rate shows only "
            f"{100 * (found.total - 1):+.1f} %"
        )
    return lines


def _runs(pairs: list[tuple[float, float]], concurrency: int) -> SpeculativeRuns:
    return SpeculativeRuns(
        output_tok_s=tuple(speed for speed, _ in pairs),
        accept_length=tuple(length for _, length in pairs),
        cycle_ms=tuple(1e3 * length * concurrency / speed for speed, length in pairs),
    )
