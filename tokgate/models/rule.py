"""The rule that a synthetic target follows, and its draft with it.

Every token id has a phase and, as its *value*, one digit per component. The next token is::

    table[phase of the current token, (digit k of the token distance_k back, for each k)]

where for each phase the table is a bijection from digit tuples to the tokens of the next phase. So the
phase walks round its cycle whatever the prompt, while which token of a phase comes next depends on the
context at every one of the chosen distances.

Only some ids are ever generated; the others (special tokens, raw bytes, fillers) may stand in prompts and
have a phase and digits like any token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokgate.errors import UsageFault
from tokgate.models.dial import Dial, verify_count
from tokgate.models.noise import hashes, permutation, stream_key
from tokgate.models.presets import Preset

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

FIRST_GENERATED = 259
"""Ids below are <unk>, <s>, </s> and the 256 bytes: never generated."""

RULE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Component:
    """One digit of the context.

    Attributes:
        radix: how many values it takes.
        distance: tokens back where it is read.
        clamped: read at position 0 while there is no such token (the relay); otherwise at the current token.
    """

    radix: int
    distance: int
    clamped: bool


def components(preset: Preset) -> tuple[Component, ...]:
    """The relay's digit first, then the single-hop ones."""
    return (
        Component(4, preset.relay_distance, True),
        *(Component(2, distance, False) for distance in preset.distances),
    )


@dataclass(frozen=True, slots=True)
class Rule:
    """The whole truth about a pair.

    Attributes:
        phase: [vocab], of each token id.
        digits: [vocab, components], of each token id.
        generated: [generated], the ids that the target produces, ascending.
        wanted: [vocab, components], the context digits that lead to that id; -1 where it is never produced.
        table: [phases, values], next id by current phase and context value.
        wrong: [phases], where the draft errs.
        twin: [vocab], for a near-tie the id whose logit is within rounding of this one's; -1 for none.
    """

    preset: Preset
    seed: int
    dial: Dial
    parts: tuple[Component, ...]
    phase: I64
    digits: I64
    generated: I64
    wanted: I64
    table: I64
    wrong: Bools
    twin: I64

    def value(self, digits: I64) -> I64:
        """Digit tuples, shape [..., components], as numbers 0..values-1."""
        result = np.zeros(digits.shape[:-1], np.int64)
        for k, part in enumerate(self.parts):
            result = result * part.radix + digits[..., k]
        return result

    def sources(self, current: int, *, draft: bool = False) -> list[int]:
        """Positions at which each component is read when the token at ``current`` is the newest.

        The draft's rows are one behind the target's: row p holds token p + 1, so token 0 is in none.
        """
        held = current - 1 if draft else current
        found = []
        for part in self.parts:
            if held >= part.distance:
                found.append(current - part.distance)
            else:
                found.append(0 if part.clamped and not draft else current)
        return found

    def context(self, ids: Sequence[int] | I64, current: int, *, draft: bool = False) -> I64:
        """The digits that decide the token after position ``current``, shape [components]."""
        return np.array(
            [self.digits[int(ids[source]), k] for k, source in enumerate(self.sources(current, draft=draft))],
            np.int64,
        )

    def next_token(self, ids: Sequence[int] | I64, current: int | None = None) -> int:
        """The target's greedy token after position ``current`` (the last one when ``None``)."""
        at = len(ids) - 1 if current is None else current
        return int(self.table[self.phase[int(ids[at])], self.value(self.context(ids, at))])

    def draft_is_right(self, ids: Sequence[int] | I64, position: int) -> bool:
        """Whether the draft predicts the token at ``position`` from those before it (near-ties aside)."""
        current = position - 1
        if self.wrong[self.phase[int(ids[current])]]:
            return False
        return bool((self.context(ids, current) == self.context(ids, current, draft=True)).all())

    def continuation(self, prompt_ids: Sequence[int], new_tokens: int) -> list[int]:
        """The target's greedy output.

        Raises:
            UsageFault: empty prompt, ids outside the vocabulary, or longer than the positions allow.
        """
        self._check(prompt_ids, new_tokens)
        ids = [int(x) for x in prompt_ids]
        for _ in range(new_tokens):
            ids.append(self.next_token(ids))
        return ids[len(prompt_ids) :]

    def verify_count(self, prompt_ids: Sequence[int], new_tokens: int, steps: int) -> int:
        """Predicted ``spec_verify_ct`` of a greedy request with topk 1."""
        ids = [*map(int, prompt_ids), *self.continuation(prompt_ids, new_tokens)]
        first = len(prompt_ids)
        right = np.array([self.draft_is_right(ids, first + i) for i in range(new_tokens)], np.bool_)
        return verify_count(right, steps)

    def _check(self, prompt_ids: Sequence[int], new_tokens: int) -> None:
        if not len(prompt_ids) or new_tokens < 1:
            raise UsageFault("a prediction needs at least one prompt token and one new token")
        outside = [x for x in prompt_ids if not 0 <= int(x) < self.preset.vocab]
        if outside:
            raise UsageFault(f"prompt id {outside[0]} is outside the vocabulary of {self.preset.vocab}")
        if len(prompt_ids) + new_tokens > self.preset.max_position:
            raise UsageFault(
                f"{len(prompt_ids)} + {new_tokens} tokens exceed the model's "
                f"{self.preset.max_position} positions"
            )


def build_rule(preset: Preset, seed: int, dial: Dial, near_tie: int | None = None) -> Rule:
    """The rule of a pair.

    Args:
        near_tie: every n-th phase ends in a near-tie; ``None`` for none.

    Raises:
        UsageFault: a dial that cannot be had, or more near-ties than there are spare ids.
    """
    parts = components(preset)
    phases, values, vocab = preset.phases, preset.values, preset.vocab
    spare = vocab - FIRST_GENERATED
    chosen = permutation(stream_key(seed, "ids"), spare) + FIRST_GENERATED
    # slots[p, v]: the id that a context of value v produces at the end of phase p - 1.
    slots = chosen[: phases * values].reshape(phases, values)
    fillers = chosen[phases * values :]
    noise = hashes(stream_key(seed, "other"), 0, 2 * vocab)
    phase = (noise[:vocab] % np.uint64(phases)).astype(np.int64)
    own = (noise[vocab:] % np.uint64(values)).astype(np.int64)
    wanted_value = np.full(vocab, -1, np.int64)
    for p in range(phases):
        phase[slots[p]] = p
        own[slots[p]] = permutation(stream_key(seed, f"values-{p}"), values)
        wanted_value[slots[p]] = np.arange(values)
    twin = np.full(vocab, -1, np.int64)
    if near_tie is not None:
        _twins(twin, slots, fillers, near_tie, phases)
        tied = np.flatnonzero(twin >= 0)
        phase[twin[tied]] = phase[tied]
        own[twin[tied]] = values - 1 - own[tied]
    wanted = np.where((wanted_value >= 0)[:, None], _digits(np.maximum(wanted_value, 0), parts), -1)
    return Rule(
        preset=preset,
        seed=seed,
        dial=dial,
        parts=parts,
        phase=phase,
        digits=_digits(own, parts),
        generated=np.sort(slots.ravel()),
        wanted=wanted,
        table=np.roll(slots, -1, axis=0),
        wrong=dial.wrong_phases(phases, seed),
        twin=twin,
    )


def _digits(value: I64, parts: tuple[Component, ...]) -> I64:
    """Numbers 0..values-1 as digit tuples, the first component most significant."""
    found = []
    for part in reversed(parts):
        found.append(value % part.radix)
        value = value // part.radix
    return np.stack(found[::-1], axis=-1)


def _twins(twin: I64, slots: I64, fillers: I64, near_tie: int, phases: int) -> None:
    """Give every token of every ``near_tie``-th phase a spare id as its twin."""
    if not 2 <= near_tie <= phases:
        raise UsageFault(f"near-tie is a whole number of phases from 2 to {phases}, got {near_tie}")
    tied = slots[near_tie - 1 :: near_tie].ravel()
    if len(tied) > len(fillers):
        least = -(-slots.size // max(len(fillers), 1))
        raise UsageFault(
            f"near-tie {near_tie} needs {len(tied)} spare ids; this preset has {len(fillers)}",
            [f"give a near-tie of {least + 1} or more"],
        )
    twin[tied] = fillers[: len(tied)]
