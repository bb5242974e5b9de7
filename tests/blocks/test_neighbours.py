"""What servers that are up at once are given; whether they fit is tested with the blocks."""

from __future__ import annotations

from dataclasses import replace

from tokgate.gate.blocks.neighbours import KV_TOKENS, MEM_FRACTION, SLEEP, beside_others
from tokgate.gate.setup import Setup


def test_each_kind_of_engine_has_its_own_neighbours(setup: Setup) -> None:
    profile = replace(setup.profiles["baseline"], mem_fraction=0.4)
    assert beside_others(profile, "emulated") is profile
    assert beside_others(profile, "cpu") == replace(profile, extra_flags=(SLEEP,))
    on_gpu = beside_others(profile, "gpu")
    assert on_gpu == replace(
        profile, mem_fraction=MEM_FRACTION, max_total_tokens=KV_TOKENS, extra_flags=(SLEEP,)
    )
    assert beside_others(on_gpu, "gpu") == on_gpu


def test_bounds_of_the_profile_and_a_share_of_the_caller_hold(setup: Setup) -> None:
    bounded = replace(setup.profiles["baseline"], max_total_tokens=1000)
    assert beside_others(bounded, "gpu").max_total_tokens == 1000
    assert beside_others(bounded, "gpu", 0.5).mem_fraction == 0.5
