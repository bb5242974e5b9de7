"""Attention heads that carry values from a fixed distance, laid into q, k, v and o projections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokgate.models.presets import Preset
from tokgate.models.rotary import amplitude, frequencies, query
from tokgate.models.tensors import Entries

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Slot:
    """One carried value: a weighted sum of input columns at the source, added to a residual dimension."""

    reads: tuple[tuple[int, float], ...]
    writes: int


@dataclass(frozen=True, slots=True)
class Head:
    """One query head: looks ``distance`` back, else at itself with ``self_weight``, and carries its slots."""

    distance: int
    self_weight: float
    slots: Sequence[Slot]


@dataclass(slots=True)
class Projections:
    """Signal entries of one attention layer, and the rows that its noise must leave alone."""

    q: Entries = field(default_factory=Entries)
    k: Entries = field(default_factory=Entries)
    v: Entries = field(default_factory=Entries)
    o: Entries = field(default_factory=Entries)
    quiet_q: list[int] = field(default_factory=list)
    quiet_k: list[int] = field(default_factory=list)
    quiet_v: list[int] = field(default_factory=list)


def build_heads(
    preset: Preset, heads: Sequence[Head], constant: I64, constant_size: float, first_kv_head: int = 0
) -> Projections:
    """Lay the heads out over key/value heads, each with its group of query heads.

    Args:
        constant: input columns that hold ``constant_size`` for every token (after the norm).
        first_kv_head: where to start, so that layers use different ones.

    Raises:
        ValueError: they do not fit.
    """
    result = Projections()
    width, group = preset.head_dim, preset.heads // preset.kv_heads
    used_slots = [0] * preset.kv_heads
    used_queries = [0] * preset.kv_heads
    rates = frequencies(preset.head_dim, preset.rope_theta, preset.rotary_pairs)
    length = amplitude(preset.head_dim, preset.rotary_pairs)
    each = length / (constant_size * len(constant))
    for head in heads:
        for offset in range(preset.kv_heads):
            kv = (first_kv_head + offset) % preset.kv_heads
            if used_queries[kv] < group and used_slots[kv] + len(head.slots) <= width:
                break
        else:
            raise ValueError(
                f"preset {preset.name}: the heads of a layer do not fit its {preset.kv_heads} KV heads"
            )
        if used_queries[kv] == 0:
            result.quiet_k.extend(range(kv * width, (kv + 1) * width))
            for pair in range(preset.rotary_pairs):
                for column in constant:
                    result.k.add(kv * width + pair, column, each)
        q_head = kv * group + used_queries[kv]
        result.quiet_q.extend(range(q_head * width, (q_head + 1) * width))
        cosines, sines = query(head.distance, head.self_weight, rates)
        for pair in range(preset.rotary_pairs):
            for column in constant:
                result.q.add(q_head * width + pair, column, cosines[pair] * each)
                result.q.add(q_head * width + width // 2 + pair, column, sines[pair] * each)
        for slot in head.slots:
            row = used_slots[kv]
            result.quiet_v.append(kv * width + row)
            for column, factor in slot.reads:
                result.v.add(kv * width + row, column, factor)
            result.o.add(slot.writes, q_head * width + row, 1.0)
            used_slots[kv] += 1
        used_queries[kv] += 1
    return result
