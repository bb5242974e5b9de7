"""Seals of a stored block: digests of its Samples' files and of what it says itself.

Against slips (a figure edited, a file put in another's place), not against intent: who edits can write a digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokgate.errors import SampleFault

SAMPLES = "samples"
DIGEST = "digest"


def sealed(block: Mapping[str, object], folder: Path, files: Iterable[Path]) -> dict[str, object]:
    """A block with its seals: ``samples``, a digest by file, and ``digest``, of all else that it says.

    Args:
        files: of its Samples, below ``folder``, just written.

    Raises:
        SampleFault: one cannot be read.
    """
    whole = {**block, SAMPLES: {str(path.relative_to(folder)): _of_file(path) for path in files}}
    return {**whole, DIGEST: _of_block(whole)}


def is_sealed(block: Mapping[str, Any]) -> bool:
    """Whether it was written with seals; by an older tokgate it was not."""
    return SAMPLES in block or DIGEST in block


def check_samples(block: Mapping[str, Any], stored_in: Path, folder: Path, names: Iterable[str]) -> None:
    """Hold Samples that a block names against its seals.

    Args:
        stored_in: file of the block, for messages.
        names: of the Samples' files, below ``folder``.

    Raises:
        SampleFault: one was edited or replaced since, or is gone; names it, and what to do.
    """
    if not is_sealed(block):
        return
    known = block.get(SAMPLES)
    for name in names:
        if (folder / name).exists() and not (folder / name).is_file():
            raise SampleFault(f"{folder / name}: is no file", advice(stored_in))
        try:
            found = _of_file(folder / name)
        except SampleFault as fault:
            raise SampleFault(fault.headline, advice(stored_in)) from fault
        if not isinstance(known, dict) or known.get(name) != found:
            raise SampleFault(
                f"{folder / name}: is not as it was stored: its digest does not fit {stored_in.name}",
                ["it was edited or replaced since", *advice(stored_in)],
            )


def check_block(block: Mapping[str, Any], stored_in: Path) -> None:
    """Hold what a block says against its own seal.

    Raises:
        SampleFault: it was edited since; says what to do.
    """
    if is_sealed(block) and block.get(DIGEST) != _of_block(block):
        raise SampleFault(
            f"{stored_in}: is not as it was stored: its digest does not fit",
            ["it was edited or replaced since", *advice(stored_in)],
        )


def advice(stored_in: Path) -> list[str]:
    """What to do about a block that is not as it was stored."""
    return [f"put back what was there, or remove {stored_in}: that block is measured again, the others stay"]


def _of_file(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise SampleFault(f"{path}: cannot be read: {error.strerror}") from error


def _of_block(block: Mapping[str, object]) -> str:
    said = json.dumps({key: value for key, value in block.items() if key != DIGEST}, sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:12]
