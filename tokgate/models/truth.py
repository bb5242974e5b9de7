"""``truth.json``: what is known beforehand of a synthetic pair, small because the rule is rebuilt from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import ValidationError

from tokgate.config.document import Section
from tokgate.errors import ModelMissing, UsageFault
from tokgate.models.dial import Dial, Kind, cycle_accept_length
from tokgate.models.layout import capture_layers
from tokgate.models.noise import hashes, stream_key
from tokgate.models.presets import find_preset
from tokgate.models.rule import RULE_VERSION, Rule, build_rule

NAME = "truth.json"
EXAMPLE_PROMPTS, EXAMPLE_TOKENS = (8, 64, 128), 256


class DialSection(Section):
    """The dial as stored."""

    kind: Kind
    value: float
    steps: int


class Example(Section):
    """A greedy request and the ``spec_verify_ct`` that it must report at the dial's steps and topk 1."""

    prompt_ids: list[int]
    new_tokens: int
    verify_count: int


class Truth(Section):
    """What is known beforehand of a pair.

    Attributes:
        rule_version: of the rule's definition; another version's file cannot be rebuilt.
        near_tie: every n-th phase ends in a near-tie, if any.
        accept_length: predicted mean over whole cycles at ``dial.steps`` steps and topk 1, away from
            the positions where a distance first reaches token 0.
        capture_layers: layers whose inputs the draft must be given, in order.
        distances: tokens back at which the context decides the next token; in order of the digits.
        files: path below the folder -> SHA-256.
        examples: predictions to be looked up; any other prompt's is reckoned. None for near-ties.
    """

    kind: Literal["tokgate synthetic pair"] = "tokgate synthetic pair"
    rule_version: int
    preset: str
    seed: int
    dial: DialSection
    near_tie: int | None = None
    accept_length: float
    capture_layers: list[int]
    distances: list[int]
    files: dict[str, str] = {}
    examples: list[Example] = []

    @cached_property
    def rule(self) -> Rule:
        """The rule, rebuilt (a second or less)."""
        return build_rule(find_preset(self.preset), self.seed, Dial(**self.dial.model_dump()), self.near_tie)


def describe(rule: Rule, near_tie: int | None, files: Mapping[str, str]) -> Truth:
    """The truth of a rule whose files have these digests."""
    dial = rule.dial
    return Truth(
        rule_version=RULE_VERSION,
        preset=rule.preset.name,
        seed=rule.seed,
        dial=DialSection(kind=dial.kind, value=dial.value, steps=dial.steps),
        near_tie=near_tie,
        accept_length=cycle_accept_length(rule.wrong, dial.steps),
        capture_layers=list(capture_layers(rule.preset.layers)),
        distances=[part.distance for part in rule.parts],
        files=dict(files),
        examples=[] if near_tie is not None else _examples(rule),
    )


def _examples(rule: Rule) -> list[Example]:
    numbers = hashes(stream_key(rule.seed, "examples"), 0, sum(EXAMPLE_PROMPTS)) % np.uint64(
        rule.preset.vocab
    )
    found, stream = [], iter(numbers.tolist())
    for length in EXAMPLE_PROMPTS:
        prompt = list(islice(stream, length))
        count = rule.verify_count(prompt, EXAMPLE_TOKENS, rule.dial.steps)
        found.append(Example(prompt_ids=prompt, new_tokens=EXAMPLE_TOKENS, verify_count=count))
    return found


def load_truth(folder: Path) -> Truth:
    """Read a pair's ``truth.json``.

    Raises:
        ModelMissing: no pair there.
        UsageFault: not a truth file, or one of another version.
    """
    path = folder / NAME
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelMissing(
            f"{path}: cannot be read: {error.strerror}",
            ["make a pair with: tokgate model make PRESET --out DIR"],
        ) from error
    try:
        truth = Truth.model_validate_json(text)
    except ValidationError as error:
        raise UsageFault(f"{path}: is not the truth of a pair: {error.errors()[0]['msg']}") from error
    if truth.rule_version != RULE_VERSION:
        raise UsageFault(
            f"{path}: was made by rule version {truth.rule_version}; this tokgate knows {RULE_VERSION}",
            ["make the pair again"],
        )
    return truth


def predicted_verify_count(truth: Truth, prompt_ids: Sequence[int], new_tokens: int, steps: int) -> int:
    """``spec_verify_ct`` of a greedy request with topk 1 on this pair.

    Exact for any prompt of at least one token, unless the pair has near-ties.

    Raises:
        UsageFault: empty prompt, ids outside the vocabulary, too many positions, or a near-tie pair (its
            target may go either way, so nothing exact can be said).
    """
    if truth.near_tie is not None:
        raise UsageFault("a near-tie pair has no exact prediction: its target may go either way at a tie")
    return truth.rule.verify_count(prompt_ids, new_tokens, steps)


def predicted_output(truth: Truth, prompt_ids: Sequence[int], new_tokens: int) -> list[int]:
    """The target's greedy output ids.

    Raises:
        UsageFault: as :func:`predicted_verify_count`, near-ties excepted: there it follows the table.
    """
    return truth.rule.continuation(prompt_ids, new_tokens)


def dump(truth: Truth) -> str:
    """The file's text."""
    return json.dumps(truth.model_dump(), indent=1) + "\n"
