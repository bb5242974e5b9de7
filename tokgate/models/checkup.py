"""Check a pair on disk: digests, margins of its heads, and its behaviour in an independent forward pass.

The forward pass (:mod:`tokgate.models.forward`) reads the files alone; what it finds is compared with the
rule that ``truth.json`` stands for. Large presets are checked over fewer tokens; the report says how many.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tokgate.errors import ModelMissing
from tokgate.models import guard
from tokgate.models.bounds import noise_ceiling
from tokgate.models.dial import verify_count
from tokgate.models.forward import draft_chain, load_model, target_pass
from tokgate.models.layout import build_layout, check_distance
from tokgate.models.noise import hashes as hash_numbers
from tokgate.models.noise import stream_key
from tokgate.models.presets import Preset
from tokgate.models.rotary import frequencies, margin
from tokgate.models.rule import Rule
from tokgate.models.truth import Truth, load_truth, predicted_verify_count

LEAST_ROTARY_MARGIN = 25.0
"""Nats by which a head must prefer its distance: e**-25 of the attention goes astray at most, per key."""

LEAST_LOGIT_SHARE = 0.08
"""Least gap between the best two logits, as a share of the best one: bfloat16 rounds by 0.004 of it."""

SMALL_BYTES = 512 << 20


@dataclass(slots=True)
class Report:
    """What was checked and what was found wrong."""

    checks: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For the terminal; the verdict last."""
        verdict = f"{len(self.faults)} faults" if self.faults else "the pair is as truth.json says"
        return [
            *(f"ok     {line}" for line in self.checks),
            *(f"FAULT  {line}" for line in self.faults),
            verdict,
        ]

    def note(self, good: bool, text: str) -> None:
        (self.checks if good else self.faults).append(text)


def verify(folder: Path, *, hashes: bool = True) -> Report:
    """Check the pair in ``folder``.

    Raises:
        ModelMissing: no pair there, or a file of it is missing.
        UsageFault: a truth file of another version.
        Misconfigured: target and draft do not belong together.
    """
    truth = load_truth(folder)
    report = Report()
    missing = [name for name in truth.files if not (folder / name).is_file()]
    if missing:
        raise ModelMissing(
            f"{folder / missing[0]}: is missing", [f"{len(missing)} of the pair's files are missing"]
        )
    guard.check(folder / "target", folder / "draft", "EAGLE3")
    report.note(True, "configs and tensor names: target and draft belong together")
    if hashes:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            found = pool.map(_digest, [folder / name for name in truth.files])
            changed = [
                name for (name, wanted), got in zip(truth.files.items(), found, strict=True) if got != wanted
            ]
        report.note(not changed, f"SHA-256 of {len(truth.files)} files" + _named(changed))
    if truth.examples:
        wrong = [
            each
            for each in truth.examples
            if predicted_verify_count(truth, each.prompt_ids, each.new_tokens, truth.dial.steps)
            != each.verify_count
        ]
        report.note(
            not wrong,
            f"examples: {len(truth.examples) - len(wrong)} of {len(truth.examples)} verify counts as the rule says",
        )
    _rotary(truth.rule.preset, report)
    _noise(truth.rule.preset, report)
    _forward(folder, truth, report)
    return report


def _rotary(preset: Preset, report: Report) -> None:
    rates = frequencies(preset.head_dim, preset.rope_theta, preset.rotary_pairs)
    found = [
        margin(hop, 0.0, rates, preset.max_position)
        for hop in {0, *map(check_distance, range(preset.layers))}
    ]
    found += [
        margin(distance, preset.self_weight, rates, preset.max_position) for distance in preset.distances
    ]
    least = min(min(each.present, each.absent) for each in found)
    report.note(
        least >= LEAST_ROTARY_MARGIN,
        f"heads win by {least:.1f} nats or more at every distance up to {preset.max_position} "
        f"(needed {LEAST_ROTARY_MARGIN:g})",
    )


def _noise(preset: Preset, report: Report) -> None:
    ceiling = noise_ceiling(build_layout(preset))
    report.note(
        ceiling.logit < ceiling.lead / 2,
        f"noise can take at most {ceiling.logit:.2f} of the best logit's lead of {ceiling.lead:.2f}",
    )


def _forward(folder: Path, truth: Truth, report: Report) -> None:
    rule = truth.rule
    size = sum((folder / name).stat().st_size for name in truth.files)
    small = size <= SMALL_BYTES
    # Long enough for the two nearest distances, and to cross the second one.
    prompt_tokens, new_tokens = (130, 80) if small else (rule.preset.distances[1] - 5, 37)
    prompt = prompt_of(rule, prompt_tokens)
    ids = [*prompt, *rule.continuation(prompt, new_tokens)]
    steps = truth.dial.steps
    beyond = [part.distance for part in rule.parts if part.distance >= len(ids)]
    if beyond:
        report.note(
            True,
            f"not reached by the passes below ({len(ids)} tokens), checked by their margin alone: distances "
            + ", ".join(map(str, beyond)),
        )
    for rounded in (False, True) if small else (True,):
        name = "bfloat16 rounding" if rounded else "float32"
        target = load_model(folder / "target", rounded=rounded)
        result = target_pass(target, ids)
        logits = target.logits(result.final)
        _judge_target(rule, ids, logits, f"target, {len(ids)} tokens, {name}", report)
        draft = load_model(folder / "draft", rounded=rounded)
        proposed = draft_chain(draft, target.weights, ids, result.aux[:-1], steps)
        right = walk(proposed, ids, prompt_tokens, steps)
        predicted = [rule.draft_is_right(ids, prompt_tokens + i) for i in range(new_tokens)]
        counted = verify_count(right, steps)
        wanted = verify_count(np.array(predicted, np.bool_), steps)
        report.note(
            counted == wanted,
            f"draft, {new_tokens} new tokens, {name}: {counted} verify passes, predicted {wanted}",
        )
    report.note(True, f"accept length over whole cycles: {truth.accept_length:.4f} at {steps} steps, topk 1")


def _judge_target(
    rule: Rule,
    ids: Sequence[int],
    logits: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    what: str,
    report: Report,
) -> None:
    best = logits.argmax(axis=1)
    top = np.partition(logits, -2, axis=1)[:, -2:]
    shares = (top[:, 1] - top[:, 0]) / top[:, 1]
    wanted = np.array([rule.next_token(ids, i) for i in range(len(ids))])
    tied = rule.twin[wanted] >= 0
    agreed = (best == wanted) | (tied & (best == rule.twin[wanted]))
    report.note(bool(agreed.all()), f"{what}: {int(agreed.sum())} of {len(ids)} next tokens as the rule says")
    clear = shares[~tied]
    report.note(
        bool((clear >= LEAST_LOGIT_SHARE).all()),
        f"{what}: best logit leads by {clear.min():.1%} or more (needed {LEAST_LOGIT_SHARE:.0%})",
    )
    if tied.any():
        report.note(
            bool((shares[tied] < 0.004).all()),
            f"{what}: {int(tied.sum())} near-ties, widest gap {shares[tied].max():.2%} of the logit",
        )


def walk(
    proposed: np.ndarray[tuple[int, int], np.dtype[np.int64]], ids: Sequence[int], first: int, steps: int
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which new tokens a greedy chain draft gets right, as the passes reach them.

    Args:
        proposed: as :func:`tokgate.models.forward.draft_chain` returns it.
        ids: prompt and output.
        first: tokens of the prompt.

    Returns:
        Shape [new tokens]; tokens that no pass drafts count as right.
    """
    right = np.ones(len(ids) - first, np.bool_)
    newest = first
    while newest < len(ids) - 1:
        accepted = 0
        for step in range(steps):
            position = newest + 1 + step
            if position >= len(ids):
                break
            right[position - first] = proposed[newest - 1, step] == ids[position]
            if not right[position - first]:
                break
            accepted += 1
        newest += accepted + 1
    return right


def prompt_of(rule: Rule, tokens: int) -> list[int]:
    """A prompt of any ids of the vocabulary, the same every time."""
    numbers = hash_numbers(stream_key(rule.seed, "verify prompt"), 0, tokens)
    return [int(x) for x in numbers % np.uint64(rule.preset.vocab)]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _named(names: list[str]) -> str:
    return f": {', '.join(names[:3])}{' ...' if len(names) > 3 else ''} differ" if names else ""
