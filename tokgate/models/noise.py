"""Numbers that are the same on every machine: a counter hash in integer arithmetic, exact conversions.

Element ``i`` of stream ``s`` depends on (seed, s, i) alone, so any slice of any tensor can be made by any
process in any order. Integers become floats by exact steps only (int16 -> float32, times a power of two,
upper half kept), so no library's or machine's rounding enters.

The mixer is splitmix64's finaliser (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
generators").
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def stream_key(seed: int, stream: str) -> int:
    """The 64-bit key of a named stream."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{stream}".encode()).digest()[:8], "little")


def hashes(key: int, start: int, count: int) -> U64:
    """``count`` 64-bit hashes of the counters from ``start`` on."""
    z = np.arange(start, start + count, dtype=np.uint64)
    z *= GOLDEN
    z += np.uint64(key)
    other = z >> np.uint64(30)
    z ^= other
    z *= MIX_1
    np.right_shift(z, np.uint64(27), out=other)
    z ^= other
    z *= MIX_2
    np.right_shift(z, np.uint64(31), out=other)
    z ^= other
    return z


def uniform(key: int, start: int, count: int) -> F32:
    """``count`` values of the stream from element ``start`` on: k / 32768, k uniform in -32768..32767.

    Args:
        start: a multiple of 4 (four elements share a hash).
    """
    assert start % 4 == 0
    words = hashes(key, start // 4, -(-count // 4)).astype("<u8", copy=False).view("<i2")[:count]
    values = words.astype(np.float32)
    values *= np.float32(2.0**-15)
    return values


def permutation(key: int, count: int) -> NDArray[np.int64]:
    """A permutation of ``range(count)``: the order of the counters' hashes."""
    return np.argsort(hashes(key, 0, count), kind="stable").astype(np.int64)


def to_bfloat16(values: F32) -> U16:
    """Bits of the nearest bfloat16, ties to even. Finite input only."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def from_bfloat16(bits: U16) -> F32:
    """float32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
