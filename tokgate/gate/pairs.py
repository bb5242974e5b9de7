"""Profiles that differ in one thing alone, so that a comparison of the two speaks of that thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tokgate.config.profiles import Profile

GRAPHS, ATTENTION_MODE = "graphs", "attention_mode"
"""Traits, for ``@pytest.mark.profiles``: has an eager partner; asks for attention mode decode."""


def eager_partner(profile: Profile, among: Iterable[Profile]) -> Profile | None:
    """The profile that is the same without CUDA graphs; ``None`` when there is none, or it has none itself."""
    if not profile.cuda_graphs:
        return None
    wanted = replace(profile, cuda_graphs=False).digest
    return next((other for other in among if other.digest == wanted), None)


def has_mode_decode(profile: Profile) -> bool:
    """Whether it asks for attention mode decode."""
    return profile.speculation is not None and profile.speculation.attention_mode == "decode"


def prefill_partner(profile: Profile, among: Iterable[Profile]) -> Profile | None:
    """The profile that is the same with attention mode prefill; ``None`` when there is none, or its own
    mode is not decode."""
    asked = profile.speculation
    if asked is None or not has_mode_decode(profile):
        return None
    wanted = replace(profile, speculation=replace(asked, attention_mode="prefill")).digest
    return next((other for other in among if other.digest == wanted), None)


PARTNERS: Mapping[str, Callable[[Profile, Iterable[Profile]], Profile | None]] = {
    GRAPHS: eager_partner,
    ATTENTION_MODE: prefill_partner,
}
