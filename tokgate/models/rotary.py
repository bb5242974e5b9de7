"""Heads that look a fixed number of tokens back, made of rotary position embedding alone.

A key that is the same for every token and a query that is the same for every token give, under rotary
embedding, a score that depends on the distance alone: with keys (1, 0) and a query turned by ``m`` steps in
each pair, score(d) = sum over pairs of cos((d - m) * frequency), largest at d = m. A second, weaker bump at
d = 0 gives the head a defined answer where no token stands ``m`` back: its own token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

PEAK = 500.0
"""Score of the chosen distance, before softmax, in nats (query x key / sqrt(head_dim))."""


def frequencies(head_dim: int, theta: float, pairs: int) -> F64:
    """Radians a token of the ``pairs`` fastest rotary pairs, shape [pairs]."""
    exponent = np.arange(pairs, dtype=np.float64) * 2.0 / head_dim
    result: F64 = np.float64(theta) ** -exponent
    return result


def amplitude(head_dim: int, pairs: int) -> float:
    """Length of each pair of a query and of a key such that a full match scores :data:`PEAK`."""
    return float(np.sqrt(PEAK * np.sqrt(head_dim) / pairs))


def query(distance: int, self_weight: float, rates: F64) -> tuple[F64, F64]:
    """First and second halves of the query's pairs (rotate-half layout), shape [pairs] each."""
    angle = distance * rates
    return np.cos(angle) + self_weight, -np.sin(angle)


def scores(distance: int, self_weight: float, rates: F64, longest: int) -> F64:
    """Score at each distance 0..longest-1, as a share of :data:`PEAK`."""
    d = np.arange(longest, dtype=np.float64)
    result: F64 = np.zeros(longest)
    for rate in rates:
        result += np.cos((d - distance) * rate)
        if self_weight:
            result += self_weight * np.cos(d * rate)
    result /= len(rates)
    return result


@dataclass(frozen=True, slots=True)
class Margin:
    """By how many nats the wanted distance wins.

    Attributes:
        present: over every other distance up to the longest, once the wanted token exists.
        absent: of the fallback (own token; the oldest one for a hop without self weight) before that.
    """

    present: float
    absent: float


def margin(distance: int, self_weight: float, rates: F64, longest: int) -> Margin:
    """The margins of a head that looks ``distance`` tokens back in sequences of up to ``longest`` tokens.

    With ``self_weight`` 0 the fallback is position 0 (the token nearest to the wanted distance).
    """
    found = scores(distance, self_weight, rates, longest)
    others = np.delete(found, distance)
    present = float(found[distance] - others.max()) if len(others) else np.inf
    absent = np.inf
    if self_weight > 0 and distance > 1:
        absent = float(found[0] - found[1:distance].max())
    elif self_weight == 0:
        for position in range(1, distance):
            absent = min(absent, float(found[position] - found[:position].max()))
    return Margin(PEAK * present, PEAK * absent)
