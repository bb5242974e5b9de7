"""Where a tensor's noise is made: numpy, or torch on a GPU where there is one. The same bytes either way.

Both do the same integer arithmetic and the same exact steps to float32 (:mod:`tokgate.models.noise`), and
round to bfloat16 to nearest, ties to even. torch is looked for at run time only: tokgate does not depend on it.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokgate.errors import UsageFault
from tokgate.models import noise

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

_BELOW_30, _BELOW_27, _BELOW_31 = ((1 << (64 - bits)) - 1 for bits in (30, 27, 31))


class Backend(Protocol):
    """Makes blocks of a matrix, in a form of its own.

    Attributes:
        block_elements: how many elements a block should have.
    """

    block_elements: int

    def rows(self, key: int, start: int, scales: F32, columns: int) -> Any:
        """Rows of noise.

        Args:
            start: number of the first element in the stream, a multiple of four.
            scales: factor of each row, a power of two, shape [rows].
        """

    def put(self, block: Any, rows: I64, columns: I64, values: F32) -> None:
        """Replace single elements, none of them twice."""

    def to_host(self, block: Any) -> F32:
        """The block as an array that can be written to."""

    def to_bfloat16(self, block: Any) -> noise.U16:
        """Bits of the nearest bfloat16, on the host."""


class NumpyBackend:
    """On the CPU, one thread."""

    block_elements = 1 << 18

    def rows(self, key: int, start: int, scales: F32, columns: int) -> F32:
        block = noise.uniform(key, start, len(scales) * columns).reshape(len(scales), columns)
        block *= scales[:, None]
        return block

    def put(self, block: F32, rows: I64, columns: I64, values: F32) -> None:
        block[rows, columns] = values

    def to_host(self, block: F32) -> F32:
        return block

    def to_bfloat16(self, block: F32) -> noise.U16:
        return noise.to_bfloat16(block)


class TorchBackend:
    """On a device of torch's.

    Args:
        torch: the module.
        device: as torch names it.
    """

    block_elements = 1 << 24

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._device = torch, device

    def rows(self, key: int, start: int, scales: F32, columns: int) -> Any:
        torch, count = self._torch, len(scales) * columns
        # int64 wraps as uint64 does; a shift to the right must not carry the sign in.
        z = torch.arange(start // 4, start // 4 - (-count // 4), dtype=torch.int64, device=self._device)
        z.mul_(_signed(int(noise.GOLDEN))).add_(_signed(key))
        z.bitwise_xor_((z >> 30) & _BELOW_30).mul_(_signed(int(noise.MIX_1)))
        z.bitwise_xor_((z >> 27) & _BELOW_27).mul_(_signed(int(noise.MIX_2)))
        z.bitwise_xor_((z >> 31) & _BELOW_31)
        block = z.view(torch.int16)[:count].to(torch.float32).mul_(2.0**-15).view(len(scales), columns)
        return block.mul_(torch.from_numpy(scales).to(self._device)[:, None])

    def put(self, block: Any, rows: I64, columns: I64, values: F32) -> None:
        at = (self._array(rows), self._array(columns))
        block.index_put_(at, self._array(values))

    def to_host(self, block: Any) -> F32:
        array: F32 = block.cpu().numpy()
        return array

    def to_bfloat16(self, block: Any) -> noise.U16:
        torch = self._torch
        bits = block.to(torch.bfloat16).view(torch.int16).cpu().numpy().view(np.uint16)
        result: noise.U16 = bits
        return result

    def _array(self, values: NDArray[Any]) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(values)).to(self._device)


def choose(choice: str) -> Backend:
    """The back-end of that name; ``auto`` is torch where it sees a GPU.

    Raises:
        UsageFault: an unknown name, or torch was asked for and is not installed.
    """
    if choice not in ("auto", "numpy", "torch"):
        raise UsageFault(f"no back-end '{choice}'; there are auto, numpy and torch")
    if choice == "numpy" or (choice == "auto" and importlib.util.find_spec("torch") is None):
        return NumpyBackend()
    try:
        torch = importlib.import_module("torch")
        on_gpu = torch.cuda.is_available()
    except (ImportError, OSError, RuntimeError) as error:
        if choice == "auto":
            return NumpyBackend()
        raise UsageFault(f"--backend torch: {error}") from error
    if choice == "auto" and not on_gpu:
        return NumpyBackend()
    return TorchBackend(torch, "cuda" if on_gpu else "cpu")


def _signed(value: int) -> int:
    """The same 64 bits as a signed number."""
    return value - (1 << 64) if value >> 63 else value
