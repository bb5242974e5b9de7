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
        fetched: per component, the digit read at its distance; zero before its layer.
        check: what the first layer of each pair reads a few tokens back and the second takes off again.
        flag: layer -> a dimension that is 0 before that layer's attention and 1 after it.
        ballast: the rest.
        ballast_size: absolute value of the embedding on each ballast dimension, exact in bfloat16.
    """

    preset: Preset
    parts: tuple[Component, ...]
    constant: I64
    phase: I64
    own: tuple[I64, ...]
    fetched: tuple[I64, ...]
    check: I64
    flag: Mapping[int, int]
    ballast: I64
    ballast_size: F32

    @property
    def checked(self) -> I64:
        """Where the check is read: the phase's first digit and the first component's own digit."""
        return np.concatenate([self.phase[: PHASE_RADIX - 1], self.own[0]])

    def code(self, component: int) -> F32:
        """The component's code, shape [radix, dimensions]."""
        radix = self.parts[component].radix
        return code(radix, repeats(radix))


def capture_layers(layers: int) -> tuple[int, int, int]:
    """The layers whose inputs SGLang hands to an EAGLE-3 draft by default."""
    return 2, layers // 2, layers - 3


def check_distance(layer: int) -> int:
    """Tokens back that a layer's check reads: the same in both layers of a pair, 1 to 3."""
    return 1 + layer // 2 % 3


def fetch_layers(preset: Preset) -> tuple[int, ...]:
    """The layer in which each digit is read, spread over the depth."""
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
    widths = [(part.radix - 1) * repeats(part.radix) for part in parts]
    constant = take(CONSTANTS)
    phase = take(PHASE_DIGITS * (PHASE_RADIX - 1))
    own = tuple(take(width) for width in widths)
    fetched = tuple(take(width) for width in widths)
    check = take(PHASE_RADIX - 1 + widths[0])
    flagged = sorted({layer for c in capture_layers(preset.layers) for layer in (c - 1, c)})
    flag = {layer: int(take(1)[0]) for layer in flagged}
    # The draft takes as many dimensions again as its head reads, from what is ballast here.
    needed = taken + len(phase) + sum(widths)
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
        fetched=fetched,
        check=check,
        flag=flag,
        ballast=np.arange(taken, preset.hidden, dtype=np.int64),
        ballast_size=_sizes(preset.hidden - taken),
    )


def _sizes(count: int) -> F32:
    """Values in 0.5..1 with seven significant bits, shape [count]."""
    steps = (hashes(stream_key(0, "ballast sizes"), 0, count) % np.uint64(64)).astype(np.float32)
    return np.float32(0.5) + steps / np.float32(128)
