"""Rate of something that happens on some launches and not on others, with an exact interval."""

from __future__ import annotations

from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of trials with its two-sided interval, all as fractions."""

    events: int
    trials: int
    low: float
    high: float
    level: float

    @property
    def value(self) -> float:
        """events / trials."""
        return self.events / self.trials

    def text(self) -> str:
        """``20 %, 95 % CI 3..56 %``."""
        low, high = _percent(self.low), _percent(self.high)
        return f"{_percent(self.value)} %, {100 * self.level:g} % CI {low}..{high} %"


def rate(events: int, trials: int, level: float = LEVEL) -> Rate:
    """Clopper-Pearson interval of a binomial share.

    Args:
        events: how many of the trials had it.
        trials: independent and alike; at least one.
        level: confidence; each end is missed with at most ``(1 - level) / 2``.

    Raises:
        ValueError: counts that cannot be, or a level outside (0, 1).

    Source: Clopper and Pearson 1934; the ends are quantiles of beta distributions.
    """
    if not 0 <= events <= trials or trials < 1:
        raise ValueError(f"{events} events in {trials} trials cannot be")
    if not 0 < level < 1:
        raise ValueError(f"a level lies between 0 and 1, got {level}")
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = 0.0 if events == 0 else float(betaincinv(events, trials - events + 1, tail))
    high = 1.0 if events == trials else float(betaincinv(events + 1, trials - events, 1 - tail))
    return Rate(events, trials, low, high, level)


def _percent(share: float) -> str:
    """Whole percents, or one decimal where that would read as 0 or 100 and is not."""
    percent = 100 * share
    near = (0 < percent < 0.5) or (99.5 <= percent < 100)
    return f"{percent:.2g}" if near and percent < 1 else f"{percent:.1f}" if near else f"{percent:.0f}"
