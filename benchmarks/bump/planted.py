"""Slow-downs planted into the old version of a bump, and the engines that have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokgate.config.engine import Engine

DELAY = Path(__file__).resolve().parents[2] / "ci" / "delay"
PURPOSES = ("slow", "slightly")
STEP_MS = 4.0
"""A decode step of the emulator's scenario `steady`."""


@dataclass(frozen=True, slots=True)
class Delay:
    """More time in every decode step.

    Attributes:
        ms: how much.
        on: ``cpu`` or ``gpu``: see ``ci/delay``.
    """

    ms: float
    on: str = "cpu"

    def __str__(self) -> str:
        return f"{self.ms:g} ms a step on the {self.on.upper()}"


def delays(text: str) -> tuple[Delay, ...]:
    """As in ``5,0.15@gpu``; ``none`` for none."""
    words = [word for word in text.split(",") if word and word != "none"]
    return tuple(Delay(float(ms), on or "cpu") for ms, _, on in (word.partition("@") for word in words))


def engines(old: Engine, new: Engine, wanted: Sequence[Delay]) -> dict[str, Engine]:
    """Engines by what they are for: ``old``, ``new``, ``again`` (the A/A), and the delayed :data:`PURPOSES`."""
    found = {"old": old, "new": new, "again": old}
    for name, delay in zip(PURPOSES, wanted, strict=False):
        named = f"{old.name}-{delay.ms:g}ms"
        if old.kind == "emulated":
            # The emulator has its own way to be slow: a step as long as the fault makes it.
            env = {**old.env, "TOKGATE_EMULATOR_FAULT": f"slow:{1 + delay.ms / STEP_MS:g}"}
            found[name] = replace(old, name=named, env=env)
            continue
        env = {**old.env, "TOKGATE_DELAY_MS": f"{delay.ms:g}", "TOKGATE_DELAY_ON": delay.on}
        found[name] = replace(old, name=named, pythonpath=(str(DELAY), *old.pythonpath), env=env)
    return found
