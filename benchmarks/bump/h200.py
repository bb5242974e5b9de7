"""A bump, its A/A control and two planted slow-downs on a GPU, from the same blocks.

    python -m benchmarks.bump.h200 --from-engine OLD.yaml --engine NEW.yaml --target DIR/target --draft DIR/draft \
        --out OUT --budget-s 560

A block starts all servers at once (starts are what costs): old and new of every profile, and on the first profile
the old version a second time (A/A), with a delay that the dry run says is found, and with one that is too small.
Each comparison is then judged and reported as ``tokgate bump`` would. Exit status 0 only when every comparison
came out as it must: A/A without an alarm, the large delay REGRESSION, the small one not called harmless.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.bump import planted
from benchmarks.bump.comparison import RIGHT, SPEED, Comparison, deciding, foreseen, judge
from tokgate.bump.options import SEED_BITS
from tokgate.bump.question import BumpAsk
from tokgate.bump.servers import benches
from tokgate.bump.stack import read_stack
from tokgate.bump.witness import Side
from tokgate.config.engine import Engine, load_engine
from tokgate.errors import HostFault, TokgateError
from tokgate.gate import setup as gate_setup
from tokgate.gate.blocks.neighbours import KV_TOKENS, MEM_FRACTION
from tokgate.gate.blocks.runner import Arm, BlockPlan, BlockRunner
from tokgate.gate.claim import claim
from tokgate.gate.setup import Request, Setup

ROOT = Path(__file__).resolve().parents[2]
SEED = 8
RESERVE_S = 25.0
"""Kept for stopping servers and writing reports."""

TEARDOWN_S = 60.0
FIRST_BLOCK_S = 240.0
"""What a first block may take with cold caches: none is begun with less left."""

FAILURES_MAX = 2


def main() -> int:
    """Run it."""
    asked = _arguments()
    began_s = time.monotonic()
    asked.out.mkdir(parents=True, exist_ok=True)
    old, new = load_engine(asked.from_engine), load_engine(asked.engine)
    setup = _setup(asked, old)
    engines = planted.engines(old, new, asked.delays)
    stacks = read_stack(old), read_stack(new)
    wanted = [
        (name, p) for i, name in enumerate(asked.profiles) for p in (engines if i == 0 else ("old", "new"))
    ]
    with claim(setup) as warnings:
        for line in warnings:
            _say(f"host: {line}")
        whole = True
        for attempt in range(len(wanted)):
            plan, sides = _plan(setup, asked, engines, wanted)
            _say(f"{len(plan.arms)} servers a block: {', '.join(arm.name for arm in plan.arms)}")
            folder = asked.out / f"blocks-{attempt}"
            bench = benches(setup, asked.out, asked.parity)(plan, folder, _witnessed(sides))
            runner = BlockRunner(plan, bench, folder)
            comparisons = _comparisons(setup, asked, engines, plan, runner, sides, folder)
            _say_planned(comparisons, asked.blocks, asked.scatter_percent / 100)

            def tell(comparisons: Sequence[Comparison] = comparisons) -> tuple[list[str], bool]:
                spent_s = time.monotonic() - began_s
                return judge(
                    comparisons,
                    asked.out,
                    stacks,
                    host_class=setup.host_class,
                    blocks=asked.blocks,
                    scatter=asked.scatter_percent / 100,
                    seconds=spent_s,
                )

            enough = _measure(runner, asked, began_s, tell)
            whole = whole and enough
            if enough or runner.blocks or runner.failed is None:
                break
            wanted = _without(wanted, sides[runner.failed])
            if not wanted:
                break
    lines, right = tell()
    print("\n".join(lines[:25]))
    return 0 if right and whole and lines else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from-engine", type=Path, required=True, help="engine file of the old version")
    parser.add_argument("--engine", type=Path, required=True, help="engine file of the new version")
    parser.add_argument("--target", type=Path, help="DIR/target of a model pair")
    parser.add_argument("--draft", type=Path, help="DIR/draft of the same pair")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget-s", type=float, default=560)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--profiles", type=_list, default=("baseline", "eagle3-graphs"))
    parser.add_argument("--workload", default="chat-bs1")
    parser.add_argument(
        "--delays", type=planted.delays, default="3,0.15", help="ms a step, @gpu: found, too small"
    )
    parser.add_argument("--parity", type=_list, default=("batch-1", "batch-8-shared", "long-context"))
    parser.add_argument("--max-total-tokens", type=int, default=KV_TOKENS)
    parser.add_argument("--mem-fraction", type=float, default=MEM_FRACTION)
    parser.add_argument("--graph-max-bs", type=int, help="captures fewer graphs: a quicker start")
    parser.add_argument("--requests", type=int, help="of a run, where a large model makes runs long")
    parser.add_argument("--scatter-percent", type=float, default=13.0, help="assumed of a block's difference")
    return parser.parse_args()


def _setup(asked: argparse.Namespace, old: Engine) -> Setup:
    request = Request(
        folder=ROOT / "perf_tests",
        results=asked.out,
        baselines=ROOT / "baselines",
        profiles=asked.profiles,
        workloads=(asked.workload,),
        # Idle servers beside the measured one must not spin on its cores.
        engine_flags=("--sleep-on-idle",),
        model=None if asked.target is None else str(asked.target.resolve().parent),
    )
    setup = gate_setup.for_engine(request, old)
    # Many servers that end at once take their time; a block that was measured must not be lost to it.
    deadlines = setup.gate.deadlines.model_copy(update={"teardown_s": TEARDOWN_S})
    return replace(setup, gate=setup.gate.model_copy(update={"deadlines": deadlines}))


Sides = Mapping[str, tuple[str, str]]
"""Arm -> profile and what its engine is for."""


def _without(wanted: Sequence[tuple[str, str]], failed: tuple[str, str]) -> list[tuple[str, str]]:
    """What can still be compared when one server does not come up: all but it, or but its profile."""
    profile, purpose = failed
    left = [w for w in wanted if w != failed and not (purpose == "old" and w[0] == profile)]
    return [w for w in left if sum(other[0] == w[0] for other in left) > 1]


def _plan(
    setup: Setup, asked: argparse.Namespace, engines: Mapping[str, Engine], wanted: Sequence[tuple[str, str]]
) -> tuple[BlockPlan, Sides]:
    arms = []
    sides: dict[str, tuple[str, str]] = {}
    for name, purpose in wanted:
        profile = replace(
            setup.profiles[name],
            mem_fraction=asked.mem_fraction,
            max_total_tokens=asked.max_total_tokens,
            cuda_graph_max_bs=asked.graph_max_bs or setup.profiles[name].cuda_graph_max_bs,
        )
        arm = re.sub(r"\W", "_", f"{purpose}_{name}")
        sides[arm] = (name, purpose)
        arms.append(Arm(arm, engines[purpose], profile))
    (workload,) = setup.workloads.values()
    workload = replace(workload, requests=asked.requests or workload.requests)
    return BlockPlan(tuple(arms), (workload,), SEED % (1 << SEED_BITS), asked.runs), sides


def _witnessed(sides: Sides) -> dict[str, tuple[str, Side]]:
    """Greedy answers of old against new; the other arms answer under a name of their own, compared with nobody."""
    found: dict[str, tuple[str, Side]] = {}
    for arm, (profile, purpose) in sides.items():
        judged = purpose in ("old", "new")
        found[arm] = (profile if judged else f"{profile}-{purpose}", "old" if purpose == "old" else "new")
    return found


def _say_planned(comparisons: Sequence[Comparison], blocks: int, scatter: float) -> None:
    """What the blocks can find, before any is measured; the planted delays are held against it."""
    for item in comparisons:
        found = foreseen(item.ask, blocks, scatter)
        _say(
            f"{item.name}: {blocks} blocks find {'nothing' if found is None else f'-{100 * found:.0f} %'} of speed "
            f"at a scatter of {100 * scatter:g} %" + (f"; planted: {item.delay}" if item.delay else "")
        )


def _measure(
    runner: BlockRunner, asked: argparse.Namespace, began_s: float, after: Callable[[], object]
) -> bool:
    """Blocks until there are enough or one more would not end in time; a failure leaves those that are in.

    Args:
        after: called after each block: what is known is written, should the machine go away.
    """
    failures = 0
    while len(runner.blocks) < asked.blocks:
        left_s = asked.budget_s - RESERVE_S - (time.monotonic() - began_s)
        need_s = runner.blocks[-1].seconds if runner.blocks else min(FIRST_BLOCK_S, asked.budget_s / 2)
        if left_s < need_s:
            _say(f"budget: {left_s:.0f} s left, a block needs {need_s:.0f} s: the rest is left out")
            return False
        try:
            block = runner.measure()
        except TokgateError as fault:
            _say(f"block {len(runner.blocks) + 1} failed ({runner.failed}): {fault}")
            failures += 1
            # The host's fault may be gone by the next block; a server's may not, nor may a third.
            if failures > FAILURES_MAX or not (runner.blocks or isinstance(fault, HostFault)):
                return False
            runner.failed = None
            continue
        _say(f"block {block.number + 1}: {block.seconds:.0f} s")
        after()
    return True


def _comparisons(
    setup: Setup,
    asked: argparse.Namespace,
    engines: Mapping[str, Engine],
    plan: BlockPlan,
    runner: BlockRunner,
    sides: Sides,
    folder: Path,
) -> list[Comparison]:
    by_purpose = {of: arm for arm, of in sides.items()}
    profiles = {arm.profile.name: arm.profile for arm in plan.arms}
    delays = dict(zip(planted.PURPOSES, asked.delays, strict=False))
    found = []
    for purpose in RIGHT:
        if purpose not in engines:
            continue
        names = asked.profiles if purpose == "new" else asked.profiles[:1]
        names = [name for name in names if {(name, "old"), (name, purpose)} <= by_purpose.keys()]
        if not names:
            _say(f"comparison '{purpose}' is left out: its server did not come up")
            continue
        ask = BumpAsk(
            old=engines["old"],
            new=engines[purpose],
            profiles=tuple(profiles[name] for name in names),
            workloads=plan.workloads,
            metrics=(SPEED, "accept_length"),
            gate=setup.gate,
            seed=plan.seed,
            pairing="all",
            blocks_max=max(3, asked.blocks),
            runs_per_arm=plan.runs_per_arm,
        )
        arms = {name: (by_purpose[name, "old"], by_purpose[name, purpose]) for name in names}
        group = deciding(runner, ask, names, arms)
        logs = None if ask.new.kind == "emulated" else folder / by_purpose[names[0], purpose] / "logs"
        found.append(Comparison(purpose, ask, group, delays.get(purpose), logs))
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _list(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name and name != "none")


if __name__ == "__main__":
    raise SystemExit(main())
