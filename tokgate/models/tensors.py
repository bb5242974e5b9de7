"""What a tensor of a synthetic model holds, row by row, without ever holding it whole.

Every weight is noise from the counter hash; the signal is laid over it: entries at (row, column), or columns
computed for a range of rows. Rows that must not be disturbed get a bound so small that it cannot show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tokgate.models.backends import Backend
from tokgate.models.noise import stream_key, to_bfloat16

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
Format = Literal["BF16", "F32", "I64", "BOOL"]

ITEM_BYTES = {"BF16": 2, "F32": 4, "I64": 8, "BOOL": 1}
QUIET = 2.0**-26


@dataclass(slots=True)
class Entries:
    """Single elements of the signal, collected while a layer is built."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, row: int, column: int, value: float) -> None:
        self.rows.append(int(row))
        self.columns.append(int(column))
        self.values.append(float(value))


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor.

    Attributes:
        name: as SGLang's loader expects it.
        shape: one or two sizes.
        format: safetensors' name of the element type.
        bound: largest absolute value of the noise, a power of two; 0 for none.
        quiet_rows: rows whose noise is bounded by :data:`QUIET` instead.
        entries: single elements that replace the noise.
        overlay: called with a block of rows and its first row number; writes the signal's columns.
        whole: the tensor itself, for norms and the draft's vocabulary maps; then nothing else is used.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    bound: float = 0.0
    quiet_rows: I64 | None = None
    entries: Entries | None = None
    overlay: Callable[[F32, int], None] | None = None
    whole: NDArray[np.generic] | None = None

    @property
    def nbytes(self) -> int:
        """Size in the file, bytes."""
        return int(np.prod(self.shape)) * ITEM_BYTES[self.format]

    def blocks(self, seed: int, part: str, backend: Backend) -> Iterator[memoryview]:
        """The tensor's bytes, little-endian, row-major, in blocks of whole rows."""
        if self.whole is not None:
            yield self._encode(self.whole)
            return
        rows, columns = self.shape
        key = stream_key(seed, f"{part}:{self.name}")
        scales = np.full(rows, self.bound, np.float32)
        if self.quiet_rows is not None:
            scales[self.quiet_rows] = QUIET
        step = max(1, backend.block_elements // columns)
        # Whole hashes: a block must start at a multiple of four elements.
        step += -step % 4
        ordered = self._ordered_entries()
        for first in range(0, rows, step):
            count = min(step, rows - first)
            block = backend.rows(key, first * columns, scales[first : first + count], columns)
            if ordered is not None:
                r, c, v = ordered
                low, high = np.searchsorted(r, [first, first + count])
                backend.put(block, r[low:high] - first, c[low:high], v[low:high])
            if self.overlay is not None or self.format != "BF16":
                host = backend.to_host(block)
                if self.overlay is not None:
                    self.overlay(host, first)
                yield self._encode(host)
            else:
                yield _bytes_of(backend.to_bfloat16(block).astype("<u2", copy=False))

    def _ordered_entries(self) -> tuple[I64, I64, F32] | None:
        if self.entries is None:
            return None
        rows = np.array(self.entries.rows, np.int64)
        order = np.argsort(rows, kind="stable")
        columns = np.array(self.entries.columns, np.int64)[order]
        return rows[order], columns, np.array(self.entries.values, np.float64)[order].astype(np.float32)

    def _encode(self, values: NDArray[np.generic]) -> memoryview:
        if self.format == "BF16":
            return _bytes_of(to_bfloat16(values.astype(np.float32, copy=False)).astype("<u2", copy=False))
        kinds = {"F32": "<f4", "I64": "<i8", "BOOL": "u1"}
        return _bytes_of(values.astype(kinds[self.format], copy=False))


def _bytes_of(values: NDArray[np.generic]) -> memoryview:
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1).data


def noise_bound(inputs: int) -> float:
    """Bound (a power of two) at which a matrix of that many inputs gives outputs of about unit size."""
    return float(2.0 ** -round(np.log2(np.sqrt(inputs / 3))))


OUT_BOUND = 2.0**-34
"""Noise of o_proj, so small that no attention output can make it show; see tokgate.models.bounds."""

DOWN_BOUND = 2.0**-42
"""Noise of down_proj, likewise."""
