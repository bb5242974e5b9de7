"""The real benches of a bump: servers of both versions, and a witness beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokgate.bump.campaign import MakeBench
from tokgate.bump.witness import Side, Witness
from tokgate.config.gate import ParitySizes
from tokgate.gate.blocks.arms import ServerBench
from tokgate.gate.blocks.runner import Bench, BlockPlan
from tokgate.gate.setup import Setup


def benches(setup: Setup, folder: Path, parity: Sequence[str]) -> MakeBench:
    """Makes the benches of a campaign.

    Args:
        setup: the checked request; an arm's engine takes the place of its engine.
        folder: of the bump.
        parity: names of the cases of greedy parity that each version answers once.
    """

    def make(plan: BlockPlan, below: Path | None, sides: Mapping[str, tuple[str, Side]]) -> Bench:
        assert below is not None
        witness = Witness(
            sides,
            setup.gate.parity.get(setup.engine.kind, ParitySizes()),
            parity,
            folder / "parity",
            crowded=plan.together and setup.engine.kind == "gpu",
            limit_s=setup.gate.deadlines.request_total_s,
        )
        if any((below / "blocks").glob("*.json")):
            for arm in sides:
                witness.known(arm)
        return ServerBench(setup, plan, below, witness)

    return make
