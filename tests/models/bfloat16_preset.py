"""The smallest preset in bfloat16: what large presets are, in a second."""

from __future__ import annotations

import dataclasses

from tokgate.models import presets

NAME = "tiny-bf16"


def add() -> None:
    """Make it known by its name, in this process."""
    small = dataclasses.replace(presets.PRESETS["tiny"], name=NAME, dtype="bfloat16")
    presets.PRESETS = {**presets.PRESETS, NAME: small}
