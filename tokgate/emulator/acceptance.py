"""How many tokens each verify pass yields.

Low-discrepancy on purpose: a scenario's accept length is met by every run, however short, so that what
scatters between runs is time (as on real hardware, where greedy acceptance repeats exactly).
"""

from __future__ import annotations

from collections.abc import Sequence


def geometric_positions(accept_length: float, steps: int) -> list[float]:
    """Equal acceptance at each draft position such that ``1 + p + ... + p^steps`` is ``accept_length``.

    Args:
        accept_length: tokens per verify pass, bonus token included; cut to 1 .. steps + 1.
        steps: draft positions.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**k for k in range(steps + 1)) < accept_length:
            low = middle
        else:
            high = middle
    return [(low + high) / 2] * steps


def mean_length(positions: Sequence[float]) -> float:
    """Accept length of a chain of draft positions, given each one's probability after the ones before."""
    total, reached = 1.0, 1.0
    for p in positions:
        reached *= p
        total += reached
    return total


class Acceptance:
    """Plans of verify passes for the requests of a run.

    Args:
        positions: acceptance probability of each draft position, given that the ones before were accepted.
    """

    def __init__(self, positions: Sequence[float]) -> None:
        self.most = len(positions) + 1
        self.mean = mean_length(positions)
        reached = [1.0]
        for p in positions:
            reached.append(reached[-1] * p)
        reached.append(0.0)
        # Probability that a pass yields exactly 1, 2, ... tokens.
        self.shares = [reached[k] - reached[k + 1] for k in range(self.most)]
        self._carry = 0.0

    def new_run(self) -> None:
        """Forget the rounding carried from request to request, so that every run is the same."""
        self._carry = 0.0

    def plan(self, tokens: int) -> list[int]:
        """Tokens of each verify pass of a request, summing to ``tokens`` (all but the prefill's one)."""
        if tokens <= 0:
            return []
        exact = tokens / self.mean + self._carry
        passes = min(max(round(exact), -(-tokens // self.most)), tokens)
        self._carry = min(max(exact - passes, -1.0), 1.0)
        counts = [0] * self.most
        plan = []
        for i in range(1, passes + 1):
            k = max(range(self.most), key=lambda k: self.shares[k] * i - counts[k])
            counts[k] += 1
            plan.append(k + 1)
        return self._exact(plan, tokens)

    def _exact(self, plan: list[int], tokens: int) -> list[int]:
        """Change single passes by one, spread over the plan, until it sums to ``tokens``."""
        excess = sum(plan) - tokens
        step = -1 if excess > 0 else 1
        position, stride = len(plan) // 2, max(1, int(len(plan) * 0.618))
        while excess:
            if 1 <= plan[position] + step <= self.most:
                plan[position] += step
                excess += step
                position += stride
            else:
                position += 1
            position %= len(plan)
        return plan
