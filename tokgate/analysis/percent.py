"""Scatters and detectable changes in words: percentages that a reader takes in, however large."""

from __future__ import annotations

NOT_YET = "none so early"
"""No change, however large, is called after so few blocks."""

WHOLE = 0.995
"""From here on a rounded percentage would say 100."""


def percent_text(share: float | None) -> str:
    """``0.52 %``, ``5.1 %``, ``78 %``, ``140 %``: two digits, whole numbers from 10 on, never an exponent.

    Args:
        share: as a fraction, not negative: 0.05 is 5 %. ``None`` is ``unknown``.
    """
    if share is None:
        return "unknown"
    value = 100 * share
    if value > 1000:
        return "more than 1000 %"
    if 0 < value < 0.001:
        return "below 0.001 %"
    # Two digits of 9.96 are 10.
    return f"{value:.2g} %" if value < 9.95 else f"{value:.0f} %"


def detectable_text(change: float | None, absent: str = "unknown") -> str:
    """The smallest change that is found: :func:`percent_text`, or that none below the whole quantity is.

    A loss of 100 % or more cannot be, and how much more than twice as long a time must be to be seen helps nobody.

    Args:
        change: as a fraction, or ``None``.
        absent: what ``None`` means.
    """
    if change is None:
        return absent
    return "nothing below 100 %" if change >= WHOLE else percent_text(change)
