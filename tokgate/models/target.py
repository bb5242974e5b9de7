"""Tensors of the synthetic target: a Llama whose greedy next token follows :mod:`tokgate.models.rule`.

Layer by layer the relay head carries the oldest digit one hop further, in a different KV head each time, so
every layer's cache entries matter; each other digit is fetched in one hop in a layer of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tokgate.models.heads import Head, Projections, Slot, build_heads
from tokgate.models.layout import Layout, hop_layers, hops, phase_code
from tokgate.models.presets import Preset
from tokgate.models.rule import Rule
from tokgate.models.tensors import DOWN_BOUND, OUT_BOUND, Format, Tensor, noise_bound

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

EPSILON = 1e-5


def tensor_format(preset: Preset) -> Format:
    """safetensors' name of the preset's element type."""
    return "BF16" if preset.dtype == "bfloat16" else "F32"


def energy(layout: Layout, layer: int) -> float:
    """Squared length of every token's residual stream at the input of a layer (``layers`` for the end)."""
    fixed = len(layout.constant) + len(layout.phase) + sum(map(len, layout.own))
    written = sum(len(columns) for columns in layout.relay[:layer])
    written += sum(
        len(c) for c, at in zip(layout.fetched, hop_layers(layout.preset), strict=True) if at < layer
    )
    written += sum(at < layer for at in layout.flag)
    return fixed + written + float((layout.ballast_size.astype(np.float64) ** 2).sum())


def rms(squared_length: float, size: int) -> float:
    """Root mean square as RMSNorm computes it."""
    return float(np.sqrt(squared_length / size + EPSILON))


def target_tensors(rule: Rule, layout: Layout) -> Iterator[Tensor]:
    """All tensors of the target, in file order."""
    preset, dtype = rule.preset, tensor_format(rule.preset)
    hidden = preset.hidden
    ones = np.ones(hidden, np.float32)
    yield Tensor(
        "model.embed_tokens.weight",
        (preset.vocab, hidden),
        dtype,
        bound=1.0,
        overlay=lambda block, first: _embed(rule, layout, block, first),
    )
    for layer in range(preset.layers):
        prefix = f"model.layers.{layer}."
        yield Tensor(prefix + "input_layernorm.weight", (hidden,), dtype, whole=ones)
        heads = _heads(layout, layer)
        yield from attention_tensors(preset, prefix + "self_attn.", heads, hidden)
        yield Tensor(prefix + "post_attention_layernorm.weight", (hidden,), dtype, whole=ones)
        yield from mlp_tensors(preset, prefix + "mlp.")
    yield Tensor("model.norm.weight", (hidden,), dtype, whole=ones)
    weights = head_rows(rule, layout)
    yield Tensor(
        "lm_head.weight",
        (preset.vocab, hidden),
        dtype,
        bound=head_noise(preset),
        overlay=lambda block, first: _put(block, layout, weights, first),
    )


def head_noise(preset: Preset) -> float:
    """Noise of lm_head: with any normalised hidden state it adds at most 1 to a logit (rows and states of
    length at most sqrt(hidden) x bound and sqrt(hidden))."""
    return float(2.0 ** -np.ceil(np.log2(preset.hidden)))


def attention_tensors(preset: Preset, prefix: str, heads: Projections, inputs: int) -> Iterator[Tensor]:
    """q, k, v and o projections with ``inputs`` input columns."""
    dtype, bound = tensor_format(preset), noise_bound(inputs)
    for name, count, entries, quiet in (
        ("q_proj", preset.heads, heads.q, heads.quiet_q),
        ("k_proj", preset.kv_heads, heads.k, heads.quiet_k),
        ("v_proj", preset.kv_heads, heads.v, heads.quiet_v),
    ):
        yield Tensor(
            f"{prefix}{name}.weight",
            (count * preset.head_dim, inputs),
            dtype,
            bound=bound,
            quiet_rows=np.array(quiet, np.int64),
            entries=entries,
        )
    yield Tensor(
        f"{prefix}o_proj.weight",
        (preset.hidden, preset.heads * preset.head_dim),
        dtype,
        bound=OUT_BOUND,
        entries=heads.o,
    )


def mlp_tensors(preset: Preset, prefix: str) -> Iterator[Tensor]:
    """gate, up and down projections: all ballast."""
    dtype, wide = tensor_format(preset), (preset.intermediate, preset.hidden)
    yield Tensor(f"{prefix}gate_proj.weight", wide, dtype, bound=noise_bound(preset.hidden))
    yield Tensor(f"{prefix}up_proj.weight", wide, dtype, bound=noise_bound(preset.hidden))
    yield Tensor(f"{prefix}down_proj.weight", wide[::-1], dtype, bound=DOWN_BOUND)


def head_rows(rule: Rule, layout: Layout) -> F32:
    """Rows of lm_head over the signal's dimensions (phase, then each component), shape [vocab, dimensions].

    Ids that are never produced have zeros; a near-tie's twin has its partner's row.
    """
    rows = signal_rows(layout, (rule.phase - 1) % rule.preset.phases, np.maximum(rule.wanted, 0))
    rows[rule.wanted[:, 0] < 0] = 0
    tied = np.flatnonzero(rule.twin >= 0)
    rows[rule.twin[tied]] = rows[tied]
    return rows


def signal_rows(layout: Layout, phases: I64, digits: I64) -> F32:
    """Head rows that match a current phase and context digits, shape [n, dimensions]."""
    parts = [phase_code(phases)]
    for k in range(len(layout.parts)):
        parts.append(layout.code(k)[digits[:, k]] * np.float32(layout.weight(k)))
    return np.concatenate(parts, axis=1)


def signal_columns(layout: Layout) -> I64:
    """The dimensions that :func:`signal_rows` speaks of, in its order."""
    return np.concatenate([layout.phase, *layout.context])


def _put(block: F32, layout: Layout, rows: F32, first: int) -> None:
    part = rows[first : first + len(block)]
    columns = signal_columns(layout)
    produced = np.flatnonzero(part.any(axis=1))
    block[np.ix_(produced, columns)] = part[produced]


def _embed(rule: Rule, layout: Layout, block: F32, first: int) -> None:
    ids = np.arange(first, first + len(block))
    block[:, layout.ballast] = np.copysign(layout.ballast_size, block[:, layout.ballast])
    block[:, : layout.preset.hidden - len(layout.ballast)] = 0
    block[:, layout.constant] = 1
    block[:, layout.phase] = phase_code(rule.phase[ids])
    for k, columns in enumerate(layout.own):
        block[:, columns] = layout.code(k)[rule.digits[ids, k]]


def _heads(layout: Layout, layer: int) -> Projections:
    preset = layout.preset
    size = rms(energy(layout, layer), preset.hidden)
    source = layout.own[0] if layer == 0 else layout.relay[layer - 1]
    slots = carried(source, layout.relay[layer], size)
    if layer in layout.flag:
        slots.append(Slot(((int(layout.constant[0]), size),), layout.flag[layer]))
    heads = [Head(hops(preset)[layer], 0.0, slots)]
    for k, at in enumerate(hop_layers(preset)):
        if at == layer:
            fetched = carried(layout.own[k + 1], layout.fetched[k], size)
            heads.append(Head(preset.distances[k], preset.self_weight, fetched))
    return build_heads(preset, heads, layout.constant, 1 / size, first_kv_head=layer % preset.kv_heads)


def carried(source: I64, destination: I64, factor: float) -> list[Slot]:
    """Slots that carry columns to dimensions one by one, times a factor."""
    return [Slot(((int(a), factor),), int(b)) for a, b in zip(source, destination, strict=True)]
