"""How figures are written in messages."""

from __future__ import annotations

from collections.abc import Sequence


def figure(value: float) -> str:
    """Four significant digits, never an exponent."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def figures(values: Sequence[float]) -> str:
    """Several figures, in order."""
    return ", ".join(figure(value) for value in values)


def count(number: int, word: str, plural: str | None = None) -> str:
    """``1 run``, ``5 runs``."""
    return f"{number} {word if number == 1 else plural or word + 's'}"
