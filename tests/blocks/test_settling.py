"""What a stored baseline or one launch leaves open is settled by blocks, within the budget, and no further."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.blocks.conftest import CONFIG, VirtualBench
from tests.gate.runs import tokgate
from tokgate.config.engine import emulated_engine
from tokgate.errors import Exited, Hang, UsageFault
from tokgate.gate.blocks.plan import BlockPlan
from tokgate.gate.blocks.settling import Asked, Budget, Settling
from tokgate.gate.setup import Setup, read
from tokgate.load.sample import Identity
from tokgate.verdict import Kind, Verdict

OPEN = Verdict(
    Kind.INCONCLUSIVE, "chat-bs1[baseline]", "output_tok_s: 80 vs 90", evidence={"metric": "output_tok_s"}
)
WHO = Identity("emulated", "e", "0", "virtual", "baseline", "p", "chat-bs1", "w", "", "l", 0, "t")
ASKED = Asked("chat-bs1", "output_tok_s", WHO)


class Bench:
    """Virtual benches of one kind, all on one clock."""

    def __init__(self, loss: float, launch_sd: float = 0.005) -> None:
        draw = random.Random(3)
        self.bench = VirtualBench(
            lambda arm, block: 100 * (1 - loss * (arm == "B")) * draw.gauss(1, launch_sd)
        )
        self.made = 0

    def __call__(self, setup: Setup, plan: BlockPlan, folder: Path) -> VirtualBench:
        self.made += 1
        self.bench.folder = folder
        return self.bench


@pytest.fixture
def settled(setup: Setup) -> Setup:
    """With a budget of an hour and a reference build."""
    request = replace(setup.request, budget_minutes=60.0, reference_engine="emulated:steady")
    return replace(setup, request=request, reference=emulated_engine("steady"))


def settling(setup: Setup, tmp_path: Path, bench: Bench) -> Settling:
    return Settling(
        setup, tmp_path, alpha=0.001, make_room=lambda: None, bench=bench, clock=bench.bench.clock
    )


@pytest.mark.parametrize(("loss", "kind"), [(0.1, Kind.REGRESSION), (0.0, Kind.PASS), (-0.1, Kind.IMPROVED)])
def test_a_build_is_held_against_the_reference_build(
    settled: Setup, tmp_path: Path, loss: float, kind: Kind
) -> None:
    workloads = tuple(settled.workloads.values())
    verdict = settling(settled, tmp_path, Bench(loss)).build(OPEN, ASKED, [ASKED], workloads)
    # A build that is no slower is passed after two blocks; that it is faster takes three.
    assert verdict.kind is kind or (kind is Kind.IMPROVED and verdict.kind is Kind.PASS)
    assert verdict.evidence["now"] / verdict.evidence["reference"] == pytest.approx(verdict.evidence["ratio"])  # type: ignore[operator]
    assert verdict.evidence["change_percent"] == pytest.approx(-100 * loss, abs=1.5)
    assert f"{verdict.evidence['blocks']} blocks)" in verdict.headline
    assert verdict.body[0].startswith("compared with reference build emulated-steady")
    assert verdict.body[-1] == f"before: {OPEN.line}"
    assert all(Path(path).is_file() for path in verdict.files)


@pytest.mark.parametrize(("loss", "advised"), [(0.1, None), (0.0, "tokgate accept")])
def test_a_build_without_a_stored_baseline_is_held_against_the_reference_build(
    settled: Setup, tmp_path: Path, loss: float, advised: str | None
) -> None:
    """And is no baseline itself when it lost."""
    missing = replace(OPEN, kind=Kind.MISSING, next_command="tokgate accept")
    workloads = tuple(settled.workloads.values())
    verdict = settling(settled, tmp_path, Bench(loss)).build(missing, ASKED, [ASKED], workloads)
    assert verdict.kind is (Kind.REGRESSION if loss else Kind.PASS)
    assert verdict.next_command == advised


def test_one_set_of_blocks_serves_all_that_is_open(settled: Setup, tmp_path: Path) -> None:
    bench = Bench(0.1)
    found = settling(settled, tmp_path, bench)
    workloads = tuple(settled.workloads.values())
    start = Asked("startup", "startup_s", WHO)
    found.build(OPEN, ASKED, [ASKED, start], workloads)
    again = found.build(replace(OPEN, evidence={}), start, [ASKED, start], workloads)
    assert bench.made == 1
    assert again.headline.startswith("startup_s: 60 vs 60 s")


def test_a_budget_that_ends_leaves_it_open_and_says_what_would_decide(settled: Setup, tmp_path: Path) -> None:
    short = replace(settled, request=replace(settled.request, budget_minutes=5.1))
    bench = Bench(0.02, launch_sd=0.03)
    verdict = settling(short, tmp_path, bench).build(OPEN, ASKED, [ASKED], tuple(short.workloads.values()))
    assert verdict.kind is Kind.INCONCLUSIVE
    assert any(line.startswith("further blocks needed") for line in verdict.body)
    assert "3 blocks in 5.0 minutes: stopped by the budget of minutes" in verdict.body
    assert bench.bench.now_s <= 306


def test_a_profile_is_held_against_its_reference(settled: Setup, tmp_path: Path) -> None:
    asked = Asked("chat-bs1", "output_tok_s", WHO)
    reference = settled.catalogue.get("baseline")
    for loss, kind in ((0.1, Kind.NET_LOSS), (-0.1, Kind.PASS)):
        found = settling(settled, tmp_path / kind, Bench(loss))
        verdict = found.profile(OPEN, asked, reference, tuple(settled.workloads.values()), "gain")
        assert verdict.kind is kind
        assert "the launch effect is covered" in verdict.body[0]


def test_a_profile_that_is_equal_to_its_reference_is_no_gain(settled: Setup, tmp_path: Path) -> None:
    found = settling(settled, tmp_path, Bench(0.0, launch_sd=0.002))
    verdict = found.profile(
        OPEN, ASKED, settled.catalogue.get("baseline"), tuple(settled.workloads.values()), "gain"
    )
    assert verdict.kind is Kind.INCONCLUSIVE
    assert "neither a gain nor a loss: any difference is below 3 %" in verdict.body
    assert verdict.evidence["blocks"] < 12  # type: ignore[operator]


@pytest.mark.parametrize(("loss", "kind"), [(0.1, Kind.NET_LOSS), (-0.1, Kind.PASS), (0.0, Kind.PASS)])
def test_a_setting_that_should_cost_nothing(settled: Setup, tmp_path: Path, loss: float, kind: Kind) -> None:
    """Attention mode: a difference that is surely below the limit is what is claimed."""
    found = settling(settled, tmp_path, Bench(loss, launch_sd=0.002))
    before = replace(OPEN, body=("accept length 2.5 with, 2.5 without: equal", "runs: 1, 2"))
    other = settled.catalogue.get("baseline-eager")
    verdict = found.profile(before, ASKED, other, tuple(settled.workloads.values()), "no loss")
    assert verdict.kind is kind
    assert "'baseline-eager', launched again beside 'baseline'" in verdict.body[0]
    assert "accept length 2.5 with, 2.5 without: equal" in verdict.body and "runs: 1, 2" not in verdict.body


def test_a_profile_is_asked_once_for_each_other_profile(settled: Setup, tmp_path: Path) -> None:
    bench = Bench(0.1)
    found = settling(settled, tmp_path, bench)
    workloads = tuple(settled.workloads.values())
    for name in ("baseline", "eagle3-eager", "baseline"):
        found.profile(OPEN, ASKED, settled.catalogue.get(name), workloads, "gain")
    assert bench.made == 2


def test_a_gain_that_is_likely_but_not_certain_stays_open_and_says_so(settled: Setup, tmp_path: Path) -> None:
    short = replace(settled, request=replace(settled.request, budget_minutes=9.0))
    found = settling(short, tmp_path, Bench(-0.03, launch_sd=0.008))
    verdict = found.profile(
        OPEN, ASKED, settled.catalogue.get("baseline"), tuple(settled.workloads.values()), "gain"
    )
    assert verdict.kind is Kind.INCONCLUSIVE and verdict.evidence["ratio"] > 1  # type: ignore[operator]
    assert "no loss; whether it is a gain takes more blocks" in verdict.body


def test_without_a_reference_build_the_budget_is_for_speculative_profiles(
    settled: Setup, tmp_path: Path
) -> None:
    both = replace(settled, profiles={n: settled.catalogue.get(n) for n in ("baseline", "eagle3-graphs")})
    assert settling(both, tmp_path, Bench(0.0))._budget.share_minutes("baseline") == 30
    assert (
        settling(replace(both, reference=None), tmp_path, Bench(0.0))._budget.share_minutes("eagle3-graphs")
        == 60
    )
    # Graphs on and off are held against each other, too: the baseline may then ask.
    names = ("baseline", "baseline-eager", "eagle3-graphs")
    graphs = replace(both, profiles={n: settled.catalogue.get(n) for n in names}, reference=None)
    assert settling(graphs, tmp_path, Bench(0.0))._budget.share_minutes("baseline") == 30


def test_a_failing_candidate_is_raised_and_a_failing_reference_is_said(
    settled: Setup, tmp_path: Path
) -> None:
    def failing(arm_that_fails: str) -> Bench:
        bench = Bench(0.0)

        def before(number: int, arm: str) -> None:
            if arm == arm_that_fails:
                raise Hang("decode: no progress", waited_s=1, limit_s=1) if arm == "B" else Exited("died")

        bench.bench.before_run = before
        return bench

    workloads = tuple(settled.workloads.values())
    with pytest.raises(Hang):
        settling(settled, tmp_path / "b", failing("B")).build(OPEN, ASKED, [ASKED], workloads)
    verdict = settling(settled, tmp_path / "a", failing("A")).build(OPEN, ASKED, [ASKED], workloads)
    assert verdict.kind is Kind.INCONCLUSIVE
    assert verdict.body[-1] == "blocks: arm A could not be measured: died"


def test_without_a_reference_build_nothing_is_measured(settled: Setup, tmp_path: Path) -> None:
    bench = Bench(0.1)
    found = settling(replace(settled, reference=None), tmp_path, bench)
    assert found.build(OPEN, ASKED, [ASKED], tuple(settled.workloads.values())) is OPEN
    assert bench.made == 0


def test_what_one_profile_leaves_of_the_budget_is_for_the_others() -> None:
    budget = Budget(30, profiles=3)
    assert budget.share_minutes("a") == 10
    budget.spent("a", 60)
    assert budget.share_minutes("b") == 14.5
    # One that asks again waits for no less: two others may still want some.
    assert budget.share_minutes("a") == pytest.approx(29 / 3)
    budget.spent("b", 3600)
    assert budget.share_minutes("c") == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budget_minutes": 0.0}, "above 0"),
        ({"reference_engine": "emulated:steady"}, "give --budget-minutes"),
        ({"budget_minutes": 1.0, "reference_engine": "emulated:nothing"}, "no scenario"),
        ({"budget_minutes": 1.0, "reference_engine": "nowhere"}, "no engine named"),
    ],
)
def test_options_that_mean_nothing_are_refused(setup: Setup, change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageFault, match=words):
        read(replace(setup.request, **change))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fault", "kind"), [((), "PASS"), (("--engine-fault=slow:1.3",), "REGRESSION")])
def test_the_gate_settles_on_the_emulator(tmp_path: Path, fault: tuple[str, ...], kind: str) -> None:
    where = (f"--results={tmp_path / 'r'}", f"--baselines={tmp_path / 'b'}")
    # The deadlines of a machine that is busy with other things: this is about blocks.
    config = tmp_path / "config"
    config.mkdir()
    for path in CONFIG.glob("*.yaml"):
        (config / path.name).write_text(re.sub(r"_s: 2(?=[,}])", "_s: 60", path.read_text()))
    asked = (
        "gate",
        "perf_tests",
        f"--config-folder={config}",
        "--engine=emulated:steady",
        "--profiles=baseline",
        "--workloads=chat-bs1",
    )
    asked += ("--runs=2", "-k=test_throughput", "-p", "no:cacheprovider", *where)
    tokgate(*asked)
    assert tokgate("accept", "latest", "--reason", "first", *where).returncode == 0
    done = tokgate(*asked, "--budget-minutes=5", "--reference-engine=emulated:steady", *fault, timeout_s=500)
    assert f"{kind} chat-bs1[baseline] output_tok_s" in done.stdout or (
        kind == "PASS" and done.returncode == 0
    )
    assert list((tmp_path / "r").glob("*/blocks/build-baseline/blocks/0000.json"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whether_graphs_pay_is_settled_on_the_emulator(tmp_path: Path) -> None:
    """One run a side says nothing of its noise; blocks of the two profiles do."""
    done = tokgate(
        "gate",
        "perf_tests",
        "--engine=emulated:steady",
        "--profiles=eagle3-graphs,eagle3-eager",
        "--workloads=chat-bs1",
        "--runs=1",
        "--budget-minutes=3",
        "-k=test_graphs_on_off",
        "-p",
        "no:cacheprovider",
        f"--results={tmp_path / 'r'}",
        timeout_s=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "r").glob("2*/blocks/profile-eagle3-graphs-eagle3-eager-chat-bs1")
    assert len(list(folder.glob("blocks/*.json"))) >= 3
