"""What other numbers of draft steps, or a tree of drafts, would give: a model from the measured costs of a step.

The costs are those of one cycle's parts; acceptance is by draft position. A chain (topk 1) tells how often its
own choice is right and nothing of second choices, so from a chain a tree's accept length is not modelled: only
what it would have to be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokgate.errors import UsageFault

MAX_STEPS = 8
"""The end of a modelled curve."""

TREES = (2, 4, 8)
"""topk of the trees that are held against a chain, each with so many times the chain's tokens."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """What a pass costs against its number of tokens.

    Attributes:
        per_token_ms: for each further token of the pass; never below 0.
        base_ms: the line at no token.
        points: (tokens, ms) that it was drawn through.
    """

    per_token_ms: float
    base_ms: float
    points: tuple[tuple[int, float], ...]


def cost_line(points: Sequence[tuple[int, float]]) -> CostLine | None:
    """The line of least squares; ``None`` when all passes had equally many tokens.

    Args:
        points: tokens of a pass (all streams together), and its ms.
    """
    if len({tokens for tokens, _ in points}) < 2:
        return None
    mean_x = sum(tokens for tokens, _ in points) / len(points)
    mean_y = sum(ms for _, ms in points) / len(points)
    spread = sum((tokens - mean_x) ** 2 for tokens, _ in points)
    slope = sum((tokens - mean_x) * (ms - mean_y) for tokens, ms in points) / spread
    slope = max(0.0, slope)
    return CostLine(slope, mean_y - slope * mean_x, tuple(points))


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Where a cycle's time goes, for one number of streams.

    Attributes:
        verify_ms: the target's verify pass at the measured number of draft tokens.
        draft_ms: one draft step.
        extend_ms: the draft's extend after verify.
        other_ms: gaps and everything else, a cycle.
        verify_per_token_ms: growth of the verify pass for each further draft token.
    """

    verify_ms: float
    draft_ms: float
    extend_ms: float = 0.0
    other_ms: float = 0.0
    verify_per_token_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelledPoint:
    """One number of draft steps in the model.

    Attributes:
        accept_length: tokens a cycle.
        tok_s: of one stream.
        speedup: over the baseline.
    """

    steps: int
    accept_length: float
    cycle_ms: float
    tok_s: float
    speedup: float


def modelled_curve(
    costs: StepCosts,
    acceptance: Sequence[float],
    *,
    baseline_tok_s: float,
    measured_steps: int,
    max_steps: int = MAX_STEPS,
) -> tuple[ModelledPoint, ...]:
    """Speed-up against the number of draft steps.

    For a chain (topk 1) a step more is a token more in the verify pass. For a tree the number of its tokens is a
    setting of its own: give ``costs.verify_per_token_ms`` 0, and acceptance as measured with that tree.

    Args:
        costs: as measured at ``measured_steps``.
        acceptance: chance that a token of a position is accepted, given that those before it were;
            positions beyond the last keep the last one's.
        baseline_tok_s: rate without speculation.
        measured_steps: steps at which ``costs.verify_ms`` was measured.
        max_steps: the curve's end.

    Raises:
        UsageFault: no acceptance, or one outside 0..1; a cost of a token that leaves nothing for the pass itself.
    """
    if costs.verify_ms <= costs.verify_per_token_ms * measured_steps:
        raise UsageFault(
            f"{costs.verify_per_token_ms:g} ms for each of {measured_steps} draft tokens leave nothing of a verify "
            f"pass of {costs.verify_ms:g} ms"
        )
    points = []
    for steps in range(1, max_steps + 1):
        length = implied_accept_length(acceptance, steps)
        verify_ms = costs.verify_ms + costs.verify_per_token_ms * (steps - measured_steps)
        cycle_ms = verify_ms + costs.draft_ms * steps + costs.extend_ms + costs.other_ms
        tok_s = length / cycle_ms * 1000
        points.append(ModelledPoint(steps, length, cycle_ms, tok_s, tok_s / baseline_tok_s))
    return tuple(points)


def best_steps(curve: Sequence[ModelledPoint]) -> ModelledPoint:
    """The fastest point; of equally fast ones the one with fewer steps."""
    return max(curve, key=lambda point: (point.speedup, -point.steps))


def position_acceptance(histogram: Sequence[int]) -> tuple[float | None, ...]:
    """Chance of acceptance at each draft position, given that those before it were accepted.

    Args:
        histogram: verify passes by number of accepted draft tokens, index 0..steps.

    Returns:
        One chance a position; ``None`` where no pass came that far.
    """
    reached = [sum(histogram[count:]) for count in range(len(histogram))]
    return tuple(further / before if before else None for before, further in itertools.pairwise(reached))


def implied_accept_length(acceptance: Sequence[float], steps: int) -> float:
    """Tokens a verify pass, bonus included, that chances of acceptance mean.

    Args:
        acceptance: chance that a token of a position is accepted, given that those before it were;
            positions beyond the last keep the last one's.
        steps: draft steps.

    Raises:
        UsageFault: no acceptance, or one outside 0..1.
    """
    if not acceptance or any(not 0 <= chance <= 1 for chance in acceptance):
        raise UsageFault("acceptance needs chances between 0 and 1")
    chances = [acceptance[min(step, len(acceptance) - 1)] for step in range(steps)]
    return 1 + sum(math.prod(chances[: step + 1]) for step in range(steps))


def constant_acceptance(accept_length: float, steps: int) -> float:
    """The single chance p with 1 + p + ... + p^steps = accept length.

    Args:
        accept_length: between 1 and steps + 1.
        steps: draft steps, 1 at least.

    Raises:
        UsageFault: an accept length that no chance gives.
    """
    if steps < 1 or not 1 <= accept_length <= steps + 1:
        raise UsageFault(f"accept length {accept_length:g} cannot be with {steps} draft steps")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**power for power in range(steps + 1)) < accept_length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@dataclass(frozen=True, slots=True)
class TreeNeed:
    """What a tree must reach to be worth more than the best chain.

    Attributes:
        topk, draft_tokens: of the tree; ``draft_tokens`` are those of a stream's verify pass.
        steps: its depth.
        cycle_ms: at least: a draft step of several tokens is taken to cost what one of one token does.
        accept_length: above which it is faster than the chain.
        possible: whether so many tokens can be accepted at all: ``steps`` and the bonus token.
    """

    topk: int
    draft_tokens: int
    steps: int
    cycle_ms: float
    accept_length: float

    @property
    def possible(self) -> bool:
        return self.accept_length < self.steps + 1


def tree_need(costs: StepCosts, best: ModelledPoint, *, measured_steps: int, topk: int) -> TreeNeed:
    """The accept length from which a tree of the best chain's depth is faster than that chain.

    Args:
        costs: of a chain of ``measured_steps``, with the cost of a further token.
        best: the best chain.
        topk: of the tree, which has so many times the chain's tokens.
    """
    draft_tokens = topk * (best.steps + 1)
    verify_ms = costs.verify_ms + costs.verify_per_token_ms * (draft_tokens - measured_steps - 1)
    cycle_ms = verify_ms + costs.draft_ms * best.steps + costs.extend_ms + costs.other_ms
    return TreeNeed(topk, draft_tokens, best.steps, cycle_ms, best.tok_s * cycle_ms / 1000)
