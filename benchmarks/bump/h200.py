"""A bump, its A/A control and two planted slow-downs on a GPU, from the same blocks.

    python -m benchmarks.bump.h200 --from-engine OLD.yaml --engine NEW.yaml --target DIR/target --draft DIR/draft \
        --out OUT --budget-s 560

A block starts all servers at once (starts are what costs): old and new of every profile, and on the first profile
the old version a second time (A/A), with a delay that the dry run says is found, and with one that is too small.
Each comparison is then judged and reported as ``tokgate bump`` would. Exit status 0 only when every comparison
came out as it must: A/A without an alarm, the large delay REGRESSION, the small one no PASS for want of proof.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokgate.bump.campaign import Group
from tokgate.bump.options import SEED_BITS, TOGETHER_MEM_FRACTION, TOGETHER_TOKENS
from tokgate.bump.outcome import report_of
from tokgate.bump.question import BumpAsk
from tokgate.bump.run import header, write_reports
from tokgate.bump.servers import benches
from tokgate.bump.stack import Stack, read_stack
from tokgate.bump.witness import Side
from tokgate.config.engine import Engine, load_engine
from tokgate.errors import TokgateError
from tokgate.gate import setup as gate_setup
from tokgate.gate.blocks import Arm, BlockPlan, BlockRunner
from tokgate.gate.claim import claim
from tokgate.gate.deciding import Deciding, Spent
from tokgate.gate.setup import Request, Setup
from tokgate.verdict import Verdict

ROOT = Path(__file__).resolve().parents[2]
DELAY = ROOT / "ci" / "delay"
SEED = 8
RESERVE_S = 25.0
"""Kept for stopping servers and writing reports."""

TEARDOWN_S = 60.0
FIRST_BLOCK_S = 240.0
"""What a first block may take with cold caches: none is begun with less left."""


@dataclass
class Comparison:
    """One bump that the blocks hold. Satisfies :class:`tokgate.bump.campaign.Standing`.

    Attributes:
        name: of its folder.
        wanted: kinds of its speed verdicts that are right.
    """

    name: str
    ask: BumpAsk
    group: Group
    wanted: tuple[str, ...]
    spent: Spent | None = None
    faults: dict[str, Verdict] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def groups(self) -> list[Group]:
        return [self.group]


def main() -> int:
    """Run it."""
    asked = _arguments()
    began_s = time.monotonic()
    asked.out.mkdir(parents=True, exist_ok=True)
    old, new = load_engine(asked.from_engine), load_engine(asked.engine)
    setup = _setup(asked, old)
    engines = _engines(old, new, asked.delays)
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
            enough = _measure(runner, asked, began_s)
            whole = whole and enough
            if enough or runner.blocks or runner.failed is None:
                break
            wanted = _without(wanted, sides[runner.failed])
            if not wanted:
                break
    comparisons = _comparisons(setup, asked, engines, plan, runner, sides)
    stacks = {name: read_stack(engine) for name, engine in engines.items() if name in ("old", "new")}
    lines, right = _judge(comparisons, asked.out, stacks, setup, time.monotonic() - began_s)
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
    parser.add_argument("--delays", type=_floats, default=(5.0, 0.05), help="ms a step: found, too small")
    parser.add_argument("--parity", type=_list, default=("batch-1", "batch-8-shared", "long-context"))
    parser.add_argument("--max-total-tokens", type=int, default=TOGETHER_TOKENS)
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
    # Seven servers that end at once take their time; a block that was measured must not be lost to it.
    deadlines = setup.gate.deadlines.model_copy(update={"teardown_s": TEARDOWN_S})
    return replace(setup, gate=setup.gate.model_copy(update={"deadlines": deadlines}))


def _engines(old: Engine, new: Engine, delays: Sequence[float]) -> dict[str, Engine]:
    """Engines by what they are for; a delay is planted in the old version's path."""
    found = {"old": old, "new": new, "again": old}
    for name, delay_ms in zip(("slow", "slightly"), delays, strict=False):
        if old.kind == "emulated":
            # The emulator has its own way to be slow: a step of 4 ms, or as long as the fault makes it.
            env = {**old.env, "TOKGATE_EMULATOR_FAULT": f"slow:{1 + delay_ms / 4:g}"}
            found[name] = replace(old, name=f"{old.name}-{delay_ms:g}ms", env=env)
            continue
        env = {**old.env, "TOKGATE_DELAY_MS": f"{delay_ms:g}"}
        path = (str(DELAY), *old.pythonpath)
        found[name] = replace(old, name=f"{old.name}-{delay_ms:g}ms", pythonpath=path, env=env)
    return found


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
            mem_fraction=TOGETHER_MEM_FRACTION,
            max_total_tokens=asked.max_total_tokens,
        )
        arm = re.sub(r"\W", "_", f"{purpose}_{name}")
        sides[arm] = (name, purpose)
        arms.append(Arm(arm, engines[purpose], profile))
    workloads = tuple(setup.workloads.values())
    return BlockPlan(tuple(arms), workloads, SEED % (1 << SEED_BITS), asked.runs), sides


def _witnessed(sides: Sides) -> dict[str, tuple[str, Side]]:
    """Greedy answers of old against new; the other arms answer under a name of their own, compared with nobody."""
    found: dict[str, tuple[str, Side]] = {}
    for arm, (profile, purpose) in sides.items():
        judged = purpose in ("old", "new")
        found[arm] = (profile if judged else f"{profile}-{purpose}", "old" if purpose == "old" else "new")
    return found


def _measure(runner: BlockRunner, asked: argparse.Namespace, began_s: float) -> bool:
    """Blocks until there are enough or one more would not end in time; a failure leaves those that are in."""
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
            return False
        _say(f"block {block.number + 1}: {block.seconds:.0f} s")
    return True


def _comparisons(
    setup: Setup,
    asked: argparse.Namespace,
    engines: Mapping[str, Engine],
    plan: BlockPlan,
    runner: BlockRunner,
    sides: Sides,
) -> list[Comparison]:
    by_purpose = {of: arm for arm, of in sides.items()}
    profiles = {arm.profile.name: arm.profile for arm in plan.arms}
    first = asked.profiles[0]
    right_kinds = {
        "again": ("PASS", "INCONCLUSIVE", "IMPROVED"),
        "slow": ("REGRESSION",),
        "slightly": ("INCONCLUSIVE",),
        "new": ("PASS", "IMPROVED", "INCONCLUSIVE", "REGRESSION"),
    }
    found = []
    for purpose, kinds in right_kinds.items():
        if purpose not in engines:
            continue
        names = [n for n in (asked.profiles if purpose == "new" else (first,)) if (n, purpose) in by_purpose]
        if not names:
            _say(f"comparison '{purpose}' is left out: its server did not come up")
            continue
        ask = BumpAsk(
            old=engines["old"],
            new=engines[purpose],
            profiles=tuple(profiles[name] for name in names),
            workloads=plan.workloads,
            metrics=("output_tok_s", "accept_length"),
            gate=setup.gate,
            seed=plan.seed,
            pairing="all",
            blocks_max=max(3, asked.blocks),
            runs_per_arm=plan.runs_per_arm,
        )
        arms: dict[str, tuple[str, Side]] = {}
        deciding = {}
        for name in names:
            old_arm, new_arm = by_purpose[name, "old"], by_purpose[name, purpose]
            arms |= {old_arm: (name, "old"), new_arm: (name, "new")}
            deciding[name] = Deciding(runner, ask.questions(name), reference=old_arm, candidate=new_arm)
        found.append(Comparison(purpose, ask, Group(None, arms, runner, deciding), kinds))
    return found


def _judge(
    comparisons: Sequence[Comparison],
    out: Path,
    stacks: Mapping[str, Stack],
    setup: Setup,
    seconds: float,
) -> tuple[list[str], bool]:
    """Write every report; the table, and whether everything came out as it must."""
    lines = [f"{'comparison':<10} {'verdict':<13} {'as it must':<10} what"]
    right = True
    for item in comparisons:
        item.spent = Spent("blocks", seconds, len(item.group.runner.blocks))
        pair = (stacks["old"], stacks["new" if item.name == "new" else "old"])
        folder = out / item.name
        folder.mkdir(exist_ok=True)
        report = report_of(item, header=header(item.ask, setup.host_class, folder), stacks=pair, again="")
        write_reports(folder, report)
        for verdict in report.verdicts:
            metric = verdict.evidence.get("metric")
            judged = metric == "output_tok_s"
            good = not judged or str(verdict.kind) in item.wanted
            right = right and good
            if judged or verdict.outcome == "failed":
                word = ("yes" if good else "NO") if judged else "-"
                lines.append(
                    f"{item.name:<10} {verdict.kind:<13} {word:<10} {verdict.subject} {verdict.headline}"
                )
    return lines, right


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _list(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name and name != "none")


def _floats(text: str) -> tuple[float, ...]:
    return tuple(map(float, _list(text)))


if __name__ == "__main__":
    raise SystemExit(main())
