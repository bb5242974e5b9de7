"""Sizes of the synthetic pairs, and the distances at which their target looks back.

The distances are not free: a rotary head that looks ``m`` tokens back, and at its own token where there is
no such token, must win over every other distance up to ``max_position``. :mod:`tokgate.models.rotary`
computes the margin; the distances here were picked for theirs, and a test holds them to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tokgate.errors import UsageFault

Dtype = Literal["bfloat16", "float32"]


@dataclass(frozen=True, slots=True)
class Preset:
    """One size.

    Attributes:
        layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, max_position, rope_theta: as in a
            Llama ``config.json``.
        dtype: of the weights.
        rotary_pairs: how many of the fastest rotary pairs a signal head uses.
        relay_distance: tokens back that the relay reaches; every layer carries it a few tokens further.
        distances: tokens back of the single-hop digits, in one layer each.
        relay_repeats: copies of the relay's code in the residual stream (1 where the hidden size is short).
        phases: length of the phase cycle.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_position: int
    rope_theta: float
    dtype: Dtype
    rotary_pairs: int
    self_weight: float
    relay_distance: int
    distances: tuple[int, ...]
    relay_repeats: int = 2
    phases: int = 480

    @property
    def values(self) -> int:
        """How many tokens share a phase: 4 (the relay's digit) x 2 for each single-hop digit."""
        return int(4 * 2 ** len(self.distances))

    @property
    def generated(self) -> int:
        """How many token ids the target ever produces: the draft's vocabulary."""
        return self.phases * self.values


_CPU = {
    "hidden": 256,
    "intermediate": 512,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 32,
    "vocab": 8192,
    "max_position": 4096,
    "rope_theta": 1e4,
    "rotary_pairs": 8,
    "self_weight": 0.88,
}
_LLAMA3 = {
    "head_dim": 128,
    "kv_heads": 8,
    "vocab": 128256,
    "max_position": 131072,
    "rope_theta": 5e5,
    "rotary_pairs": 12,
    "self_weight": 0.85,
    "relay_distance": 45,
    "distances": (101, 557, 1789, 3889),
}


def _preset(name: str, shared: Mapping[str, object], **own: object) -> Preset:
    return Preset(name=name, **{**shared, **own})  # type: ignore[arg-type]


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        _preset("tiny", _CPU, layers=8, dtype="float32", relay_distance=12, distances=(19, 100)),
        _preset(
            "small",
            _CPU,
            layers=24,
            dtype="float32",
            relay_distance=56,
            distances=(100, 571),
            relay_repeats=1,
        ),
        _preset(
            "1b",
            {},
            layers=16,
            hidden=2048,
            intermediate=8192,
            heads=32,
            kv_heads=8,
            head_dim=64,
            vocab=128256,
            max_position=32768,
            rope_theta=1e4,
            dtype="bfloat16",
            rotary_pairs=10,
            self_weight=0.85,
            relay_distance=57,
            distances=(101, 326, 1250, 3336),
        ),
        _preset("8b", _LLAMA3, layers=32, hidden=4096, intermediate=14336, heads=32, dtype="bfloat16"),
        _preset(
            "70b-layers", _LLAMA3, layers=12, hidden=8192, intermediate=28672, heads=64, dtype="bfloat16"
        ),
    )
}


def find_preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        UsageFault: no such preset; lists them.
    """
    if name in PRESETS:
        return PRESETS[name]
    raise UsageFault(f"no preset '{name}'", [f"presets: {', '.join(PRESETS)}"])
