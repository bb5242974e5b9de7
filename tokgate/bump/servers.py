"""The real benches of a bump: servers of both versions, and a witness beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokgate.analysis.parity_case import Case
from tokgate.bump.campaign import MakeBench
from tokgate.bump.witness import Side, Witness
from tokgate.config.gate import ParitySizes
from tokgate.gate import parity
from tokgate.gate.arms import ServerBench
from tokgate.gate.blocks import Bench, BlockPlan
from tokgate.gate.results import Shelf
from tokgate.gate.run import SMALL_VOCABULARY
from tokgate.gate.setup import Setup
from tokgate.gate.start import Starter


def benches(setup: Setup, folder: Path, parity_names: Sequence[str]) -> MakeBench:
    """Makes the benches of a campaign.

    Args:
        setup: the checked request; an arm's engine takes the place of its engine.
        folder: of the bump.
        parity_names: cases of greedy parity that each version answers once.
    """
    cases: dict[str, Case] = {}
    if parity_names:
        sizes = setup.gate.parity.get(setup.engine.kind, ParitySizes())
        profile = next(iter(setup.profiles.values()))
        vocabulary = Starter(setup, Shelf(folder / "parity")).served(profile).vocabulary
        every = parity.cases(sizes, vocabulary or SMALL_VOCABULARY)
        cases = {name: case for name, case in every.items() if name in parity_names}

    def make(plan: BlockPlan, below: Path | None, sides: Mapping[str, tuple[str, Side]]) -> Bench:
        assert below is not None
        witness = Witness(
            sides,
            cases,
            folder / "parity",
            with_floor=setup.engine.kind != "emulated",
            limit_s=setup.gate.deadlines.request_total_s,
        )
        if any((below / "blocks").glob("*.json")):
            for arm in sides:
                witness.known(arm)
        return ServerBench(setup, plan, below, witness)

    return make
