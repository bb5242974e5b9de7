"""Repetition in a generated output: the commonest way in which a broken decoder goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

REPEATS = 8
"""Shortest run of one block, in tokens, that is called repetition."""

LONGEST_BLOCK = 8
"""Longest block that is looked for when judging repetition, tokens."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """A block of tokens given over and over.

    Attributes:
        start: output position where it begins.
        block: the block.
        times: whole repetitions.
    """

    start: int
    block: tuple[int, ...]
    times: int


def find_repetition(ids: Sequence[int], start: int) -> Repetition | None:
    """A short block repeated from near ``start`` to the end, at least :data:`REPEATS` tokens and 3 times."""
    for size in range(1, LONGEST_BLOCK + 1):
        same = len(ids) - 1
        while same - size >= max(start - 1, 0) and ids[same] == ids[same - size]:
            same -= 1
        begin = same - size + 1
        length = len(ids) - begin
        if length >= max(REPEATS, 3 * size):
            return Repetition(begin, tuple(ids[begin : begin + size]), length // size)
    return None
