"""Margin: how much slower than another profile of the same run is too much, where the noise leaves it open.

One launch a side may not call a loss; a server ten times slower must not look green for that.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokgate.config.gate import GateFile
from tokgate.verdict import Kind

SPEED_LIMIT = "output_tok_s"
"""Metric of gate.yaml whose limit holds for the speed of two profiles."""

NO_LIMIT_PERCENT = 3.0
"""For a gate.yaml that does not gate the metric."""


@dataclass(frozen=True, slots=True)
class Margin:
    """The loss of speed against another profile that is still none.

    Attributes:
        limit_percent: of the other's speed.
    """

    limit_percent: float = NO_LIMIT_PERCENT

    def exceeded(self, ratio: float) -> bool:
        """Whether a profile was measured slower than the limit allows, surely or not.

        Args:
            ratio: its speed over the other's.
        """
        return 100 * (1 - ratio) > self.limit_percent

    def remark(self, kind: Kind, ratio: float) -> str:
        """What line 1 of an undecided verdict says of it: the exit code is not green."""
        if kind is not Kind.INCONCLUSIVE or not self.exceeded(ratio):
            return ""
        return f", beyond the limit -{self.limit_percent:g} %"


UNGATED = Margin()
"""Of speed that gate.yaml does not gate."""


def speed_margin(gate: GateFile) -> Margin:
    """As gate.yaml has it."""
    return Margin(limit_percent(gate, SPEED_LIMIT))


def limit_percent(gate: GateFile, metric: str) -> float:
    """Limit of a metric, gated or not."""
    limit = gate.metrics.get(metric)
    return NO_LIMIT_PERCENT if limit is None else limit.limit_percent
