"""The error rate of a whole run, shared out over its verdicts.

Bonferroni's share holds whatever the verdicts have in common (the same server, the same bad day), which is
why no sharper rule for independent verdicts is used.
"""

from __future__ import annotations


def alpha_per_verdict(alpha: float, verdicts: int) -> float:
    """Chance of a false REGRESSION allowed to each verdict, so that any in the run is at most ``alpha``.

    Args:
        alpha: of the run.
        verdicts: how many verdicts of the run can come out REGRESSION, decided before measuring.

    Raises:
        ValueError: ``alpha`` not between 0 and 0.5, or no verdicts.
    """
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha lies between 0 and 0.5, not {alpha!r}")
    if verdicts < 1:
        raise ValueError(f"a run has at least one verdict, not {verdicts!r}")
    return alpha / verdicts


def any_false_alarm(each: float, verdicts: int) -> float:
    """Chance of at least one false alarm among independent verdicts that each have the chance ``each``."""
    import math

    return -math.expm1(verdicts * math.log1p(-each))
