"""Where things stand in the residual stream, and the codes they are written in.

A digit is written as +1 / -1 in a few dimensions such that any two digits of a radix differ in the same
number of them (rows of a Hadamard matrix without its constant column). All dimensions not named here are
ballast: the embedding writes random signs there, of a size that depends on the dimension alone. So every
token has the same length, and RMSNorm the same scale: were it not so, a longer token's key would count for
less, and a head could take its neighbour for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokgate.models.noise import hashes, stream_key
from tokgate.models.presets import Preset
from tokgate.models.rule import Component, components

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

CONSTANTS = 16
"""Dimensions that are +1 for every token."""

DIFFERENCE = 8
"""Scalar product of a digit's code with itself less that with any other's: the same for every radix."""

PHASE_RADIX = 8
PHASE_DIGITS = 3


def hadamard(order: int) -> F32:
    """Sylvester's matrix of +1 and -1, shape [order, order], order a power of two."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < order:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]]).astype(np.float32)
    return matrix


def code(radix: int, repeats: int) -> F32:
    """Codes of the digits of a radix (a power of two), shape [radix, (radix - 1) * repeats].

    Scalar product of a code with itself: (radix - 1) * repeats; with any other: -repeats.
    """
    return np.tile(hadamard(radix)[:, 1:], repeats)


def repeats(radix: int) -> int:
    """Copies that give every radix the same distance: own product less other product = 8."""
    return DIFFERENCE // radix


@dataclass(frozen=True, slots=True)
class Layout:
    """Dimensions of the residual stream, by use; every array holds column numbers.

    Attributes:
        constant: +1 for every token.
        phase: the current token's phase.
        own: per component, the current token's digit.
        relay: per layer, the relay's digit after that layer's hop; zero before it.
        fetched: per single-hop component, the digit read at its distance; zero before its layer.
        flag: layer -> a dimension that is 0 before that layer's attention and 1 after it.
        ballast: the rest.
        ballast_size: absolute value of the embedding on each ballast dimension, exact in bfloat16.
    """

    preset: Preset
    parts: tuple[Component, ...]
    constant: I64
    phase: I64
    own: tuple[I64, ...]
    relay: tuple[I64, ...]
    fetched: tuple[I64, ...]
    flag: Mapping[int, int]
    ballast: I64
    ballast_size: F32

    @property
    def context(self) -> tuple[I64, ...]:
        """Per component, the dimensions from which the head reads the context digit."""
        return (self.relay[-1], *self.fetched)

    def code(self, component: int) -> F32:
        """The component's code, shape [radix, dimensions]."""
        if component == 0:
            return code(4, self.preset.relay_repeats)
        return code(2, repeats(2))

    def weight(self, component: int) -> float:
        """What the head multiplies the component's code by, so that all digits weigh the same."""
        return repeats(4) / self.preset.relay_repeats if component == 0 else 1.0


def capture_layers(layers: int) -> tuple[int, int, int]:
    """The layers whose inputs SGLang hands to an EAGLE-3 draft by default."""
    return 2, layers // 2, layers - 3


def hops(preset: Preset) -> tuple[int, ...]:
    """Tokens back that the relay moves in each layer; they add up to ``relay_distance``."""
    least, more = divmod(preset.relay_distance, preset.layers)
    return tuple(least + (layer < more) for layer in range(preset.layers))


def hop_layers(preset: Preset) -> tuple[int, ...]:
    """The layer in which each single-hop digit is fetched, spread over the depth."""
    count = len(preset.distances)
    return tuple((k + 1) * preset.layers // (count + 1) for k in range(count))


def phase_code(phases: I64) -> F32:
    """Codes of phases, shape [n, PHASE_DIGITS * 7]."""
    digits = code(PHASE_RADIX, repeats(PHASE_RADIX))
    return np.concatenate(
        [digits[(phases // PHASE_RADIX**k) % PHASE_RADIX] for k in range(PHASE_DIGITS)], axis=-1
    )


def build_layout(preset: Preset) -> Layout:
    """The layout of a preset.

    Raises:
        ValueError: the hidden size is too small for the signal; says how many dimensions it needs.
    """
    taken = 0

    def take(count: int) -> I64:
        nonlocal taken
        taken += count
        return np.arange(taken - count, taken, dtype=np.int64)

    parts = components(preset)
    relay_width = 3 * preset.relay_repeats
    single_width = repeats(2)
    constant = take(CONSTANTS)
    phase = take(PHASE_DIGITS * (PHASE_RADIX - 1))
    own = (take(relay_width), *(take(single_width) for _ in preset.distances))
    relay = tuple(take(relay_width) for _ in range(preset.layers))
    fetched = tuple(take(single_width) for _ in preset.distances)
    flagged = sorted({layer for c in capture_layers(preset.layers) for layer in (c - 1, c)})
    flag = {layer: int(take(1)[0]) for layer in flagged}
    # The draft takes as many dimensions again as its head reads, from what is ballast here.
    needed = taken + len(phase) + relay_width + single_width * len(preset.distances)
    if needed > preset.hidden:
        raise ValueError(
            f"preset {preset.name}: the signal needs {needed} dimensions, hidden is {preset.hidden}"
        )
    return Layout(
        preset=preset,
        parts=parts,
        constant=constant,
        phase=phase,
        own=own,
        relay=relay,
        fetched=fetched,
        flag=flag,
        ballast=np.arange(taken, preset.hidden, dtype=np.int64),
        ballast_size=_sizes(preset.hidden - taken),
    )


def _sizes(count: int) -> F32:
    """Values in 0.5..1 with seven significant bits, shape [count]."""
    steps = (hashes(stream_key(0, "ballast sizes"), 0, count) % np.uint64(64)).astype(np.float32)
    return np.float32(0.5) + steps / np.float32(128)
