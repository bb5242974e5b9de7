"""Counters in memory shared by scheduler and HTTP process, as prometheus' multiprocess files are.

They can be read while the scheduler is stopped, as SGLang's `/metrics` can.
"""

from __future__ import annotations

import mmap
import struct

NAMES = (
    "prefill_none",
    "decode_cuda_graph",
    "decode_none",
    "prefill_compute",
    "prefill_cache",
    "decode_tokens",
    "running",
    "queued",
    "gen_throughput",
    "accept_length",
    "accept_rate",
    "used_tokens",
    "decode_tokens_logged",
)
_DOUBLE = struct.Struct("<d")


class Counters:
    """Named floating-point cells, 0.0 at first; create before forking."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._offsets = {name: 8 * i for i, name in enumerate(NAMES)}

    def __getitem__(self, name: str) -> float:
        (value,) = _DOUBLE.unpack_from(self._memory, self._offsets[name])
        return float(value)

    def __setitem__(self, name: str, value: float) -> None:
        _DOUBLE.pack_into(self._memory, self._offsets[name], value)

    def add(self, name: str, amount: float = 1.0) -> None:
        """Increase a cell; only one process writes each."""
        self[name] += amount
