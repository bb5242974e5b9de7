"""The dial: in which phases of the cycle the draft is wrong.

Every generated token moves one phase on, whatever the context, so a set of wrong phases fixes where the
draft fails, for any prompt. Spread as evenly as integers allow, the accept length over a few hundred tokens
is the wanted one to within one verify step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tokgate.errors import UsageFault
from tokgate.models.noise import permutation, stream_key

Bools = NDArray[np.bool_]
Kind = Literal["accept_length", "agreement", "wrong_every"]


@dataclass(frozen=True, slots=True)
class Dial:
    """Which phases the draft gets wrong.

    Attributes:
        kind: ``accept_length``: evenly spread, for this mean accept length; ``agreement``: a scattered set
            of this share of right tokens; ``wrong_every``: every n-th phase.
        value: of that kind.
        steps: draft steps for which the accept length holds.
    """

    kind: Kind
    value: float
    steps: int = 3

    def check(self, phases: int) -> None:
        """Raises :class:`UsageFault` when the value cannot be had."""
        if self.steps < 1:
            raise UsageFault(f"steps must be at least 1, got {self.steps}")
        longest = self.steps + 1
        if self.kind == "accept_length" and not 1 < self.value <= longest:
            raise UsageFault(
                f"accept length {self.value:g} cannot be had with {self.steps} draft steps",
                [f"give a value above 1 and up to {longest} (steps + 1)"],
            )
        if self.kind == "agreement" and not 0 <= self.value <= 1:
            raise UsageFault(f"agreement is a share between 0 and 1, got {self.value:g}")
        if self.kind == "wrong_every" and (self.value != int(self.value) or not 2 <= self.value <= phases):
            raise UsageFault(f"wrong-every is a whole number from 2 to {phases}, got {self.value:g}")

    def wrong_phases(self, phases: int, seed: int) -> Bools:
        """Shape [phases]: whether the draft errs on the token that follows a token of that phase.

        Raises:
            UsageFault: as :meth:`check`.
        """
        self.check(phases)
        wrong = np.zeros(phases, np.bool_)
        if self.kind == "wrong_every":
            wrong[int(self.value) - 1 :: int(self.value)] = True
        elif self.kind == "agreement":
            count = round((1 - self.value) * phases)
            wrong[permutation(stream_key(seed, "dial"), phases)[:count]] = True
        elif self.value < self.steps + 1:
            count = round(phases / self.value)
            wrong[np.arange(1, count + 1) * phases // count - 1] = True
        return wrong


def choose_dial(
    accept_length: float | None, agreement: float | None, wrong_every: int | None, steps: int
) -> Dial:
    """The dial from its three spellings; by default the longest accept length.

    Raises:
        UsageFault: more than one given.
    """
    given: list[Dial] = []
    if accept_length is not None:
        given.append(Dial("accept_length", float(accept_length), steps))
    if agreement is not None:
        given.append(Dial("agreement", float(agreement), steps))
    if wrong_every is not None:
        given.append(Dial("wrong_every", float(wrong_every), steps))
    if len(given) > 1:
        raise UsageFault("give one of accept length, agreement and wrong-every, not several")
    return given[0] if given else Dial("accept_length", float(steps + 1), steps)


def chain_length(right: Bools, start: int, steps: int) -> int:
    """How many drafted tokens from ``start`` on are right, at most ``steps``; the end counts as right."""
    for k in range(steps):
        if start + k < len(right) and not right[start + k]:
            return k
    return steps


def verify_count(right: Bools, steps: int) -> int:
    """Verify passes that a greedy chain draft (topk 1) needs.

    Args:
        right: shape [new_tokens]: whether the draft predicts that new token; element 0, the prefill's own
            token, is not drafted and not looked at.
        steps: draft steps of a pass.
    """
    done, passes = 1, 0
    while done < len(right):
        done += chain_length(right, done, steps) + 1
        passes += 1
    return passes


def cycle_accept_length(wrong: Bools, steps: int) -> float:
    """Mean accept length over whole cycles: tokens per verify pass, bonus token included."""
    cycles = steps + 2
    right = np.tile(~wrong, cycles + 1)
    start = int(np.argmax(wrong)) + 1 if wrong.any() else 0
    done, passes = start, 0
    while done < start + cycles * len(wrong):
        done += chain_length(right, done, steps) + 1
        passes += 1
    return (done - start) / passes
