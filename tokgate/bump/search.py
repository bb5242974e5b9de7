"""Bisection as such: which of a row of versions is the first bad one. Pure: what is known of a version is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Finding = Literal["good", "bad", "skip"]
Judge = Callable[[str], Finding]


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search.

    Attributes:
        last_good: the latest version known to be good.
        suspects: versions of which one is the first bad one; the last of them is known to be bad. A single
            one is the answer.
        skipped: how many versions that were asked for could not be judged.
    """

    last_good: str
    suspects: tuple[str, ...]
    skipped: int

    @property
    def first_bad(self) -> str | None:
        """The answer; ``None`` when versions that could not be judged lie between."""
        return self.suspects[0] if len(self.suspects) == 1 else None


def search(versions: Sequence[str], judge: Judge) -> Found:
    """Find the first bad version.

    Args:
        versions: in order, two or more; the first is known to be good, the last to be bad.
        judge: asked for each version in between that matters, once.

    Raises:
        ValueError: fewer than two versions, or one twice.
    """
    if len(versions) < 2 or len(set(versions)) < len(versions):
        raise ValueError(f"a bisection needs two or more different versions, not {list(versions)}")
    good, bad = 0, len(versions) - 1
    known: dict[int, Finding] = {}
    while (middle := next_index(good, bad, known)) is not None:
        finding = known[middle] = judge(versions[middle])
        if finding == "good":
            good = middle
        elif finding == "bad":
            bad = middle
    skipped = sum(finding == "skip" for finding in known.values())
    return Found(versions[good], tuple(versions[good + 1 : bad + 1]), skipped)


def next_index(good: int, bad: int, known: Mapping[int, Finding]) -> int | None:
    """The version to be asked next: the one nearest to the middle of which nothing is known; ``None`` when all
    in between are known (they were skipped)."""
    inside = [index for index in range(good + 1, bad) if index not in known]
    # Of two equally near the later one: a bug is as likely on either side, and newer versions build more often.
    return min(inside, key=lambda index: (abs(2 * index - good - bad), -index), default=None)


def steps_at_most(count: int) -> int:
    """Versions that must be judged when none is skipped, both ends known.

    Args:
        count: versions, ends included.
    """
    return max(0, (count - 2)).bit_length()
