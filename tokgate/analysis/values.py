"""Measured values, checked: what cannot be a measurement never reaches a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tokgate.errors import SampleFault

Values = NDArray[np.float64]
Better = Literal["higher", "lower"]
SMALLEST, LARGEST = 1e-100, 1e100
"""No measurement is beyond these, and sums of squares of those within are finite."""


def measured(values: Sequence[float], what: str = "runs") -> Values:
    """The values as an array, if every one is finite and above zero.

    Args:
        values: any unit.
        what: names them in the message.

    Raises:
        SampleFault: empty, not numbers, NaN, infinite or near it, zero or negative; names the first offender.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise SampleFault(f"{what}: not a list of numbers: {error}") from error
    if array.ndim != 1 or array.size == 0:
        raise SampleFault(f"{what}: no values" if array.size == 0 else f"{what}: not a flat list of numbers")
    bad = ~((array > SMALLEST) & (array < LARGEST))
    if bad.any():
        at = int(bad.argmax())
        raise SampleFault(
            f"{what}: value {at + 1} of {array.size} is {array[at]:g}; a measurement is above 0 "
            f"(beyond {SMALLEST:g}) and finite (below {LARGEST:g})"
        )
    return array


def direction(better: Better) -> int:
    """+1 when higher is better, -1 when lower is.

    Raises:
        ValueError: neither ``higher`` nor ``lower``.
    """
    if better == "higher":
        return 1
    if better == "lower":
        return -1
    raise ValueError(f"better is 'higher' or 'lower', not {better!r}")


def log_limit(limit: float, better: Better) -> float:
    """The limit as a positive distance on the log scale.

    A loss of ``limit`` is a ratio of ``1 - limit`` when higher is better and ``1 + limit`` when lower is.

    Args:
        limit: a fraction: 0.03 is 3 %.

    Raises:
        ValueError: not between 0 and 1 (a percentage given for a fraction, most likely).
    """
    if not 0 < limit < 1:
        raise ValueError(f"limit is a fraction between 0 and 1, not {limit!r} (0.03 is 3 %)")
    return -math.log1p(-limit) if direction(better) > 0 else math.log1p(limit)


def check_rates(alpha: float, beta: float) -> None:
    """Raise ValueError unless both error rates lie strictly between 0 and 0.5."""
    for name, rate in (("alpha", alpha), ("beta", beta)):
        if not 0 < rate < 0.5:
            raise ValueError(f"{name} lies between 0 and 0.5, not {rate!r}")


def ratio_of(log_ratio: float) -> float:
    """e to this power, kept finite and above 0 for absurd inputs (an interval from two wild blocks)."""
    return math.exp(min(max(log_ratio, -700.0), 700.0))
