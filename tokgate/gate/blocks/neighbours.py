"""Servers of a block that are up at once: whether they fit, and what each is given so that neither minds the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokgate.config.engine import EngineKind
from tokgate.config.profiles import Profile
from tokgate.errors import UsageFault
from tokgate.gate.blocks.plan import Arm
from tokgate.gate.setup import Setup

ROOM = 0.92
"""Share of a GPU's memory that the servers' static shares may take together; the rest is activations."""

MEM_FRACTION = 0.7
KV_TOKENS = 65536
"""Servers that start at the same time on a GPU each take their neighbours' memory for their own use, so that a
share of the GPU means nothing: a large one and a bounded KV cache is what they can agree on."""

SLEEP = "--sleep-on-idle"
"""An idle scheduler polls at a whole core otherwise, which may be the other half of the measured one's."""


def beside_others(profile: Profile, kind: EngineKind, mem_fraction: float | None = None) -> Profile:
    """The profile as its server is launched beside others; an emulated server minds nobody.

    Args:
        mem_fraction: of every server (default: :data:`MEM_FRACTION`).
    """
    if kind == "emulated":
        return profile
    if kind == "gpu":
        profile = replace(
            profile,
            mem_fraction=mem_fraction or MEM_FRACTION,
            max_total_tokens=profile.max_total_tokens or KV_TOKENS,
        )
    if SLEEP in profile.extra_flags:
        return profile
    return replace(profile, extra_flags=(*profile.extra_flags, SLEEP))


def side_by_side(setup: Setup, arms: Sequence[Arm]) -> tuple[tuple[Arm, ...], bool]:
    """The arms as they are launched, and whether their servers are up at once."""
    if crowded(setup, arms) is not None:
        return tuple(arms), False
    return tuple(replace(arm, profile=beside_others(arm.profile, arm.engine.kind)) for arm in arms), True


def crowded(setup: Setup, arms: Sequence[Arm]) -> str | None:
    """Why the servers of these arms cannot be up at once, by what they are configured to take; ``None`` when they can.

    Raises:
        UsageFault: a share of memory that is none.
    """
    if setup.engine.kind != "gpu":
        return None
    shares = [_static_share(setup, arm) for arm in arms]
    if any(share is None for share in shares):
        return (
            "a server that is given no memory fraction takes the whole GPU: set mem_fraction in the profile"
        )
    total = sum(share or 0.0 for share in shares)
    if total > ROOM:
        return f"the profiles ask for {100 * total:.0f} % of the GPU's memory together (room: {100 * ROOM:.0f} %)"
    return None


def _fraction(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1:
        raise UsageFault(f"--engine-flag: --mem-fraction-static is above 0 and below 1, not '{text}'")
    return found


def _static_share(setup: Setup, arm: Arm) -> float | None:
    flags = setup.request.engine_flags
    for flag, value in zip(flags, (*flags[1:], ""), strict=False):
        name, equals, given = flag.partition("=")
        if name == "--mem-fraction-static":
            return _fraction(given if equals else value)
    return arm.profile.mem_fraction
