"""Tensors of the synthetic EAGLE-3 draft: one layer that follows the target's rule, the dial's errors aside.

It works from token embeddings in its own KV cache; from the target's hidden states it takes proof that they
are the right ones. Each captured layer has a flag dimension that is written just before it and one written
just after; ``fc`` turns a wrong pair of flags (wrong layers, wrong order) into a value on the trap
dimensions, which the draft's head answers with nonsense. A hidden state that bypasses ``fc`` (EAGLE instead
of EAGLE3) carries the target's constant dimensions, which are the same trap. As EAGLE, SGLang also replaces
the draft's head by the target's: so the draft writes its phase and digits in dimensions of its own, where the
target's head reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokgate.models.heads import Head, Slot, build_heads
from tokgate.models.layout import CONSTANTS, Layout, capture_layers, hadamard
from tokgate.models.noise import hashes, stream_key, uniform
from tokgate.models.rule import Rule
from tokgate.models.target import (
    attention_tensors,
    carried,
    energy,
    head_noise,
    mlp_tensors,
    rms,
    signal_rows,
    tensor_format,
)
from tokgate.models.tensors import Entries, Tensor

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

TRAP_GAIN = 2.0
"""What ``fc`` writes to each trap dimension when a flag is wrong, in units of the code."""

TRAP_WEIGHT = 8.0
"""Weights of the draft's head on the trap dimensions, against 1 on the code's."""

MIX_BOUND = 2.0**-12
"""Noise of ``fc`` from the hidden states into the draft's ballast."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The draft's own dimensions of its residual stream.

    Attributes:
        phase: the newest token's phase.
        context: per component, the digit read at its distance.
    """

    phase: I64
    context: tuple[I64, ...]

    @property
    def signal(self) -> I64:
        """All of them, in the order of :func:`tokgate.models.target.signal_rows`."""
        return np.concatenate([self.phase, *self.context])


def draft_columns(layout: Layout) -> Columns:
    """The draft's dimensions: taken from the end of what is ballast to the target."""
    widths = [len(layout.phase), *map(len, layout.context)]
    taken = layout.ballast[len(layout.ballast) - sum(widths) :]
    phase, *context = np.split(taken, np.cumsum(widths)[:-1])
    return Columns(phase, tuple(context))


def draft_tensors(rule: Rule, layout: Layout) -> Iterator[Tensor]:
    """All tensors of the draft, in file order."""
    preset, dtype = rule.preset, tensor_format(rule.preset)
    hidden = preset.hidden
    ones = np.ones(hidden, np.float32)
    columns = draft_columns(layout)
    ballast = _ballast(rule, layout, columns)
    yield Tensor(
        "fc.weight",
        (hidden, 3 * hidden),
        dtype,
        bound=MIX_BOUND,
        quiet_rows=np.concatenate([layout.constant, columns.signal]),
        entries=_fc(layout, ballast),
    )
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        yield Tensor(f"midlayer.{name}.weight", (hidden,), dtype, whole=ones)
    heads = build_heads(
        preset, _heads(layout, columns, ballast), layout.constant, 1 / rms(energy(layout, 0), hidden)
    )
    yield from attention_tensors(preset, "midlayer.self_attn.", heads, 2 * hidden)
    yield from mlp_tensors(preset, "midlayer.mlp.")
    yield Tensor("norm.weight", (hidden,), dtype, whole=ones)
    rows, traps = head_rows(rule, layout), _traps(rule)

    def overlay(block: F32, first: int) -> None:
        block[:, columns.signal] = rows[first : first + len(block)]
        block[:, layout.constant] = traps[first : first + len(block)]

    yield Tensor("lm_head.weight", (len(rows), hidden), dtype, bound=head_noise(preset), overlay=overlay)
    known = np.zeros(preset.vocab, np.bool_)
    known[rule.generated] = True
    yield Tensor("d2t", (len(rows),), "I64", whole=rule.generated - np.arange(len(rows)))
    yield Tensor("t2d", (preset.vocab,), "BOOL", whole=known)


def head_rows(rule: Rule, layout: Layout) -> F32:
    """Rows of the draft's head, by draft id: the target's, with every digit turned where the draft errs."""
    phases = (rule.phase[rule.generated] - 1) % rule.preset.phases
    digits = rule.wanted[rule.generated].copy()
    radixes = np.array([part.radix for part in rule.parts], np.int64)
    wrong = rule.wrong[phases]
    digits[wrong] = (digits[wrong] + 1) % radixes
    return signal_rows(layout, phases, digits)


def _traps(rule: Rule) -> F32:
    count = len(rule.generated)
    bits = hashes(stream_key(rule.seed, "traps"), 0, count)
    signs = (bits[:, None] >> np.arange(CONSTANTS, dtype=np.uint64)) & np.uint64(1)
    return (np.float32(TRAP_WEIGHT) * (2 * signs.astype(np.float32) - 1)).astype(np.float32)


def _ballast(rule: Rule, layout: Layout, columns: Columns) -> F32:
    """What ``fc`` gives the draft's residual on each dimension, shape [hidden]; zero on the signal's."""
    hidden = rule.preset.hidden
    values = uniform(stream_key(rule.seed, "draft ballast"), 0, hidden + -hidden % 4)[:hidden].copy()
    values[layout.constant] = 0
    values[columns.signal] = 0
    return values


def _fc(layout: Layout, ballast: F32) -> Entries:
    hidden = layout.preset.hidden
    entries = Entries()
    for row in np.flatnonzero(ballast):
        entries.add(int(row), int(layout.constant[0]), float(ballast[row]))
    patterns = hadamard(CONSTANTS)[1:]
    for k, layer in enumerate(capture_layers(layout.preset.layers)):
        start = k * hidden
        before, after = patterns[2 * k], patterns[2 * k + 1]
        for i, row in enumerate(layout.constant):
            gain = TRAP_GAIN * float(before[i])
            entries.add(int(row), start + layout.flag[layer - 1], gain)
            for column in layout.constant:
                entries.add(int(row), start + int(column), -gain / CONSTANTS)
            entries.add(int(row), start + layout.flag[layer], TRAP_GAIN * float(after[i]))
    return entries


def _heads(layout: Layout, columns: Columns, ballast: F32) -> list[Head]:
    preset = layout.preset
    hidden = preset.hidden
    token = rms(energy(layout, 0), hidden)
    own = rms(float((ballast.astype(np.float64) ** 2).sum()) + len(columns.signal), hidden)
    # Each step replaces the last one's phase and digits: takes off what the hidden state holds, adds the new.
    phase = [
        Slot(((int(source), token), (hidden + int(at), -own)), int(at))
        for source, at in zip(layout.phase, columns.phase, strict=True)
    ]
    erase = [Slot(((hidden + int(at), -own),), int(at)) for each in columns.context for at in each]
    heads = [Head(0, 0.0, phase), Head(0, 0.0, erase)]
    for k, part in enumerate(layout.parts):
        heads.append(
            Head(part.distance, preset.self_weight, carried(layout.own[k], columns.context[k], token))
        )
    return heads
