"""The safetensors file format: an 8-byte length, a JSON header, the tensors' bytes.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokgate.errors import ModelMissing
from tokgate.models.noise import from_bfloat16
from tokgate.models.tensors import Tensor

INDEX = "model.safetensors.index.json"
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies.

    Attributes:
        start, stop: byte offsets in the file.
    """

    path: Path
    format: str
    shape: tuple[int, ...]
    start: int
    stop: int


def header_bytes(tensors: Sequence[Tensor]) -> bytes:
    """Length and header of a file that holds these tensors one after another."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        header[tensor.name] = {
            "dtype": tensor.format,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def read_header(path: Path) -> dict[str, Entry]:
    """Name -> entry of one file; reads the header only.

    Raises:
        ModelMissing: not there, cut short, or not a safetensors file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(_LONGEST_HEADER, size):
                raise ValueError("its header is longer than the file")
            raw = json.loads(file.read(length))
        found = {
            name: Entry(
                path,
                str(item["dtype"]),
                tuple(int(n) for n in item["shape"]),
                8 + length + int(item["data_offsets"][0]),
                8 + length + int(item["data_offsets"][1]),
            )
            for name, item in raw.items()
            if name != "__metadata__"
        }
    except OSError as error:
        raise ModelMissing(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error) as error:
        raise ModelMissing(f"{path}: is not a safetensors file: {error}") from error
    short = [name for name, entry in found.items() if entry.stop > size]
    if short:
        raise ModelMissing(f"{path}: is cut short: {size} bytes do not hold '{short[0]}'")
    return found


def read_folder(folder: Path) -> dict[str, Entry]:
    """Name -> entry over all weight files of a model's folder.

    Raises:
        ModelMissing: no weight files, a shard of the index missing, or a faulty file.
    """
    index = folder / INDEX
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise ModelMissing(f"{index}: is not an index of weight files: {error}") from error
        paths = [folder / str(shard) for shard in shards]
    else:
        paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ModelMissing(f"{folder}: holds no .safetensors file")
    found: dict[str, Entry] = {}
    for path in paths:
        found |= read_header(path)
    return found


class Weights:
    """Tensors of a model's folder, read from disk when asked for, as float32 or integers."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self.entries = entries

    def rows(self, name: str, wanted: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float32]:
        """The wanted rows of a floating-point tensor as float32."""
        raw = self.raw(name)[wanted]
        if self.entries[name].format == "BF16":
            return from_bfloat16(np.asarray(raw, np.uint16))
        return raw.astype(np.float32)

    def raw(self, name: str) -> NDArray[np.generic]:
        """The tensor as stored (bfloat16 as uint16), memory-mapped."""
        entry = self.entries[name]
        kinds = {"BF16": "<u2", "F32": "<f4", "I64": "<i8", "BOOL": "?"}
        return np.memmap(entry.path, kinds[entry.format], "r", offset=entry.start, shape=entry.shape)
