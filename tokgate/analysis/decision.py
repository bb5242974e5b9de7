"""Decision: what the statistics say of one metric of one profile, before it becomes a Verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

DecisionKind = Literal["REGRESSION", "IMPROVED", "PASS", "INCONCLUSIVE"]
ORDER: tuple[DecisionKind, ...] = ("REGRESSION", "INCONCLUSIVE", "PASS", "IMPROVED")


@dataclass(frozen=True, slots=True)
class Decision:
    """One judgement and the figures behind it.

    Attributes:
        kind: REGRESSION and IMPROVED speak of a build; INCONCLUSIVE says that the data do not decide.
        ratio: candidate / reference of the metric as measured, whichever direction is better.
        interval: of ``ratio``, at ``level``; ``None`` when the data carry no measure of their noise.
        level: confidence of ``interval``.
        n: blocks (or, against a stored baseline, sessions) that were used.
        s: scatter seen now, on the log scale (0.02 is about 2 %): of block differences, or of sessions.
            ``None`` when there is too little to tell.
        s0: scatter known from calibration, same scale; ``None`` without a history.
        smallest_detectable: the smallest loss, as a fraction, that as much data would find with
            probability 1 - beta; ``None`` when there is too little to tell.
        blocks_needed: further blocks after which the present mean and scatter would decide; 0 when
            decided; ``None`` when no number of blocks would, or when blocks are not what is missing.
        method: the rule that judged.
        limit: the loss that fails, as a fraction.
        notes: what a reader must know besides, one sentence each.
    """

    kind: DecisionKind
    ratio: float
    interval: tuple[float, float] | None
    n: int
    s: float | None
    s0: float | None
    smallest_detectable: float | None
    blocks_needed: int | None
    method: str
    limit: float
    level: float = 0.95
    notes: tuple[str, ...] = ()

    @property
    def change(self) -> float:
        """``ratio - 1``: -0.03 is 3 % less."""
        return self.ratio - 1

    def to_json(self) -> dict[str, Any]:
        """JSON values only; the kind stands under the key ``verdict``."""
        data = asdict(self)
        data["verdict"] = data.pop("kind")
        return data

    def change_text(self) -> str:
        """``-10.0 % (95 % CI -11.9..-8.1, 6 blocks)``, without the interval when there is none."""
        text = f"{100 * self.change:+.1f} %"
        if self.interval is None:
            return f"{text} (no interval)"
        low, high = (100 * (end - 1) for end in self.interval)
        return f"{text} ({100 * self.level:.0f} % CI {low:+.1f}..{high:+.1f})"
