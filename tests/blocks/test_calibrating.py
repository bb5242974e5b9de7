"""``tokgate calibrate run``: the scatter that is there is found, whatever cut the session short."""

from __future__ import annotations

import datetime
import math
import os
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from tests.blocks.conftest import VirtualBench
from tokgate.analysis.calibration_file import read_calibration, write_calibration
from tokgate.config.profiles import Profile
from tokgate.errors import HostLocked, LoadFault, SampleFault
from tokgate.gate.blocks import calibrating, calibrations
from tokgate.gate.blocks.calibrating import Calibrated, store
from tokgate.gate.blocks.neighbours import KV_TOKENS, MEM_FRACTION, SLEEP
from tokgate.gate.blocks.plan import Arm, BlockPlan
from tokgate.gate.blocks.runner import BlockRunner
from tokgate.gate.setup import Setup, for_engine
from tokgate.load.sample import Identity

LAUNCH_SD = 0.03

# Two runs a launch: each is a file that is synced to the disk.
calibrate = partial(calibrating.calibrate, runs_per_arm=2)


class Hosts:
    """Makes virtual benches whose launches scatter by :data:`LAUNCH_SD`."""

    def __init__(self, fails_at: int | None = None, compiles_s: float = 0.0) -> None:
        self.fails_at = fails_at
        self.compiles_s = compiles_s
        self.now_s = 0.0
        self.runs = 0

    def __call__(self, setup: Setup, plan: BlockPlan, folder: Path) -> VirtualBench:
        def speed(arm: str, block: int) -> float:
            # Of the launch, not of the call: every run of it has the same.
            return 900 * math.exp(random.Random(f"{plan.seed}/{arm}/{block}").gauss(0, LAUNCH_SD))

        def before(block: int, arm: str) -> None:
            self.runs += 1
            if block == 0:
                self.bench.now_s, self.compiles_s = self.bench.now_s + self.compiles_s, 0.0
            if block == self.fails_at:
                raise LoadFault("the server went away")

        self.bench = VirtualBench(speed, folder=folder, before_run=before)
        return self.bench


def file(setup: Setup, metric: str = "output_tok_s") -> Path:
    return calibrations.path_of(setup.request.baselines, "virtual", "baseline", "chat-bs1", metric)


@pytest.fixture(autouse=True)
def known_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions differ by a random seed; a test should not."""
    seeds = iter(range(100, 200))
    monkeypatch.setattr("tokgate.gate.blocks.calibrating.secrets.randbelow", lambda bound: next(seeds))


def test_the_known_launch_effect_is_found(setup: Setup) -> None:
    (done,) = calibrate(setup, ["baseline"], blocks=20, bench=Hosts(), say=str)
    history = read_calibration(file(setup)).history()
    assert history is not None and history.blocks == done.blocks == 20
    truth = math.sqrt(2) * LAUNCH_SD
    low, high = (history.s0 * math.sqrt(20 / chi2.ppf(q, 20)) for q in (0.995, 0.005))
    assert low < truth < high
    assert not low < 2 * truth < high, "the interval tells a twice as large effect apart"


def test_a_session_cut_short_is_taken_up_and_ends_as_if_it_had_not_been(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LoadFault):
        calibrate(setup, ["baseline"], blocks=6, bench=Hosts(fails_at=3), say=str)
    assert len(read_calibration(file(setup)).sessions[0].blocks) == 3
    hosts, said = Hosts(), []
    (done,) = calibrate(setup, ["baseline"], blocks=6, bench=hosts, say=said.append)
    assert done.blocks == 6 and hosts.runs == 3 * 4
    assert said[0].startswith("baseline: going on after block 3 of 6")
    whole = read_calibration(file(setup))
    assert len(whole.sessions) == 1
    # The same plan, measured in one go, in another place.
    other = replace(setup, request=replace(setup.request, results=tmp_path / "r2", baselines=tmp_path / "b2"))
    monkeypatch.setattr("tokgate.gate.blocks.calibrating.secrets.randbelow", lambda bound: 100)
    calibrate(other, ["baseline"], blocks=6, bench=Hosts(), say=str)
    assert read_calibration(file(other)).sessions[0].blocks == whole.sessions[0].blocks


def test_a_session_that_was_edited_is_not_taken_up_and_its_calibrations_stay(setup: Setup) -> None:
    with pytest.raises(LoadFault):
        calibrate(setup, ["baseline"], blocks=4, bench=Hosts(fails_at=2), say=str)
    before = file(setup).read_text()
    path = next((setup.request.results / "calibrate").rglob("0001.json")).parents[1]
    edited = sorted(path.glob("B/samples/baseline/chat-bs1/*.sample.json"))[0]
    text = edited.read_text()
    edited.write_text(text.replace('"output_tok_s":', '"output_tok_s":1'))
    hosts = Hosts()
    with pytest.raises(SampleFault, match="is not as it was stored"):
        calibrate(setup, ["baseline"], blocks=4, bench=hosts, say=str)
    assert hosts.runs == 0 and file(setup).read_text() == before
    edited.write_text(text)
    (done,) = calibrate(setup, ["baseline"], blocks=4, bench=hosts, say=str)
    assert done.blocks == 4 and not [line for line in done.remarks if "block" in line]


def test_a_block_taken_out_of_a_session_is_measured_again_and_told(setup: Setup) -> None:
    with pytest.raises(LoadFault):
        calibrate(setup, ["baseline"], blocks=4, bench=Hosts(fails_at=3), say=str)
    next((setup.request.results / "calibrate").rglob("0001.json")).unlink()
    (done,) = calibrate(setup, ["baseline"], blocks=4, bench=Hosts(), say=str)
    assert done.blocks == 4 and "block 1 is gone and is measured again" in done.remarks
    assert sorted(path.name for path in done.folder.glob("blocks/*.json")) == [
        f"000{n}.json" for n in range(4)
    ]


def test_the_figures_are_made_again_from_the_stored_samples(setup: Setup) -> None:
    (done,) = calibrate(setup, ["baseline"], blocks=4, bench=Hosts(), say=str)
    before = {path: path.read_text() for path in done.files}
    assert file(setup) in before
    for path in done.files:
        path.unlink()
    arms = tuple(Arm(name, setup.engine, setup.profiles["baseline"]) for name in "AB")
    plan = BlockPlan(arms, tuple(setup.workloads.values()), seed=100, runs_per_arm=2)
    runner = BlockRunner(plan, Hosts()(setup, plan, done.folder), done.folder)
    store(setup, runner, done.folder)
    assert {path: path.read_text() for path in done.files} == before


def test_a_finished_session_is_followed_by_a_new_one_and_both_are_pooled(setup: Setup) -> None:
    calibrate(setup, ["baseline"], blocks=3, bench=Hosts(), say=str)
    stored = next((setup.request.results / "calibrate").glob("*/baseline/*T*Z"))
    stored.rename(stored.with_name("20260101T000000Z"))
    # Sessions are told apart by the second: as if the first had been on another day.
    path = file(setup)
    early = read_calibration(path)
    early = replace(early, sessions=(replace(early.sessions[0], started_at="2026-01-01T00:00:00+00:00"),))
    write_calibration(path, early)
    calibrate(setup, ["baseline"], blocks=3, bench=Hosts(), say=str)
    found = read_calibration(file(setup))
    assert [len(session.blocks) for session in found.sessions] == [3, 3]
    assert found.sessions[0] == early.sessions[0] != found.sessions[1]


@pytest.mark.parametrize(("first", "then"), [(2, 5), (5, 2)])
def test_a_finished_session_is_not_added_to_by_a_call_that_asks_for_more(
    setup: Setup, first: int, then: int
) -> None:
    """A session is what one request measured: its beginning and its blocks stay what they were."""
    (done,) = calibrate(setup, ["baseline"], blocks=first, bench=Hosts(), say=str)
    early = read_calibration(file(setup)).sessions[0]
    done.folder.rename(done.folder.with_name("20260101T000000Z"))
    aside = replace(early, started_at="2026-01-01T00:00:00+00:00")
    write_calibration(file(setup), replace(read_calibration(file(setup)), sessions=(aside,)))
    hosts, said = Hosts(), []
    (more,) = calibrate(setup, ["baseline"], blocks=then, bench=hosts, say=said.append)
    assert (more.blocks, hosts.runs) == (then, then * 4)
    assert not said[0].startswith("baseline: going on")
    found = read_calibration(file(setup))
    assert [len(session.blocks) for session in found.sessions] == [first, then]
    assert found.sessions[0] == aside


def test_a_session_that_another_call_measures_is_refused_and_no_block_is_lost(setup: Setup) -> None:
    """Else both measure the same blocks, disturb one another, and the later file wins."""
    refused: list[str] = []
    second = Hosts()

    class First(Hosts):
        def __call__(self, setup: Setup, plan: BlockPlan, folder: Path) -> VirtualBench:
            bench = super().__call__(setup, plan, folder)
            with pytest.raises(HostLocked) as error:
                calibrate(setup, ["baseline"], blocks=3, bench=second, say=str)
            refused.append(str(error.value))
            return bench

    with pytest.raises(LoadFault):
        calibrate(setup, ["baseline"], blocks=3, bench=First(fails_at=1), say=str)
    assert second.runs == 0
    # It is given back, also by a call that fails.
    (done,) = calibrate(setup, ["baseline"], blocks=3, bench=Hosts(), say=str)
    assert done.blocks == 3
    assert f"{done.folder.parent} is in use by another tokgate: pid {os.getpid()} (" in refused[0]


def test_a_budget_ends_the_session_before_a_block_that_would_not_fit(setup: Setup) -> None:
    hosts = Hosts()

    def clock() -> float:
        return hosts.bench.now_s if hasattr(hosts, "bench") else 0.0

    # A block takes 80 s here: two fit into 200 s.
    (done,) = calibrate(setup, ["baseline"], blocks=20, minutes=200 / 60, bench=hosts, clock=clock, say=str)
    assert (done.blocks, done.asked) == (2, 20)


def test_blocks_of_an_earlier_call_say_how_long_the_next_takes(setup: Setup) -> None:
    def within(minutes: float) -> Calibrated:
        hosts = Hosts()

        def clock() -> float:
            return hosts.bench.now_s if hasattr(hosts, "bench") else 0.0

        (done,) = calibrate(
            setup, ["baseline"], blocks=20, minutes=minutes, bench=hosts, clock=clock, say=str
        )
        return done

    # Of a new session nothing is known: its first block (80 s) is measured, whatever the budget.
    first, later, enough = within(0.02), within(1), within(1.5)
    assert (first.blocks, later.blocks, enough.blocks) == (1, 1, 2)
    assert first.folder == later.folder == enough.folder


def test_the_first_block_which_compiles_is_not_how_long_the_next_ones_take(setup: Setup) -> None:
    """The first takes 620 s, each later one 80 s: eleven are done in 1500 s, not the four that 620 s each allow."""
    hosts = Hosts(compiles_s=540.0)

    def clock() -> float:
        return hosts.bench.now_s if hasattr(hosts, "bench") else 0.0

    (done,) = calibrate(setup, ["baseline"], blocks=20, minutes=25, bench=hosts, clock=clock, say=str)
    assert done.blocks == 11
    assert hosts.bench.now_s <= 1500
    # While it is the only one nothing else is known.
    hosts = Hosts(compiles_s=540.0)
    other = replace(setup, request=replace(setup.request, results=setup.request.results / "alone"))
    (done,) = calibrate(other, ["baseline"], blocks=20, minutes=20, bench=hosts, clock=clock, say=str)
    assert done.blocks == 1


@pytest.mark.parametrize("change", [{"engine_flags": ("--log-level", "info")}, {"model": "pair-8b"}])
def test_a_session_with_other_flags_or_another_model_is_not_gone_on_with(
    setup: Setup, change: dict[str, Any]
) -> None:
    with pytest.raises(LoadFault):
        calibrate(setup, ["baseline"], blocks=3, bench=Hosts(fails_at=1), say=str)
    (session,) = (setup.request.results / "calibrate").glob("*/baseline/*T*Z")
    session.rename(session.with_name("20260101T000000Z"))
    said: list[str] = []
    changed = replace(setup, request=replace(setup.request, **change))
    (done,) = calibrate(changed, ["baseline"], blocks=3, bench=Hosts(), say=said.append)
    assert not said[0].startswith("baseline: going on")
    assert done.folder.name != "20260101T000000Z"


def who(setup: Setup, **parts: str) -> Identity:
    given = {
        "engine": "emulated", "engine_name": "e", "sglang_version": "0", "host_class": "virtual", "profile": "baseline",
        "profile_digest": setup.profiles["baseline"].digest, "workload": "chat-bs1", "workload_digest": "w",
        "model": "", "launch": "l", "started_at": "t",
    }  # fmt: skip
    return Identity(run=0, **(given | parts))


def test_a_calibration_serves_only_what_it_is_of(setup: Setup, plan: BlockPlan) -> None:
    root, plan = setup.request.baselines, replace(plan, runs_per_arm=2)
    nothing, remarks = calibrations.known(root, who(setup), "output_tok_s", plan)
    assert nothing is None and "no calibration of output_tok_s chat-bs1[baseline]" in remarks[0]
    calibrate(setup, ["baseline"], blocks=3, bench=Hosts(), say=str)
    history, remarks = calibrations.known(root, who(setup), "output_tok_s", plan)
    assert history is not None and history.blocks == 3
    assert "3 A/A blocks of 20" in remarks[0]
    for change, words in (
        (who(setup, model="8b"), "model"),
        (who(setup, profile_digest="q"), "profile digest"),
    ):
        found, remarks = calibrations.known(root, change, "output_tok_s", plan)
        assert found is None and f"of something else: {words}" in remarks[0]
    found, remarks = calibrations.known(root, who(setup), "output_tok_s", replace(plan, runs_per_arm=8))
    assert found is None and "block: calibrated 2 runs an arm" in remarks[0]
    file(setup).write_text("schema: 9")
    with pytest.raises(SampleFault, match="not a calibration"):
        calibrations.known(root, who(setup), "output_tok_s", plan)


def test_on_a_gpu_servers_are_bounded_and_the_calibration_is_the_profiles(setup: Setup) -> None:
    """Two servers that start at once take each other's memory for their own: a share of .4 each would be a lottery."""
    setup = replace(setup, engine=replace(setup.engine, kind="gpu"))
    profile = setup.profiles["baseline"]
    assert (profile.mem_fraction, profile.max_total_tokens) == (0.4, None)
    launched: list[Profile] = []

    class Watched(Hosts):
        def __call__(self, setup: Setup, plan: BlockPlan, folder: Path) -> VirtualBench:
            launched.extend(arm.profile for arm in plan.arms)
            return super().__call__(setup, plan, folder)

    calibrate(setup, ["baseline"], blocks=3, bench=Watched(), say=str)
    assert [(p.mem_fraction, p.max_total_tokens, p.extra_flags) for p in launched] == [
        (MEM_FRACTION, KV_TOKENS, (SLEEP,))
    ] * 2
    assert read_calibration(file(setup)).identity["profile_digest"] == profile.digest
    whole = replace(profile, mem_fraction=None)
    launched.clear()
    elsewhere = replace(setup.request, results=setup.request.results / "whole")
    setup = replace(setup, profiles={"baseline": whole}, request=elsewhere)
    calibrate(setup, ["baseline"], blocks=3, bench=Watched(), say=str)
    assert launched == [whole, whole], "one at a time: as configured"


def test_an_edited_calibration_is_told_before_anything_is_started(setup: Setup) -> None:
    """Else a block would be measured that cannot be added."""
    with pytest.raises(LoadFault):
        calibrate(setup, ["baseline"], blocks=3, bench=Hosts(fails_at=2), say=str)
    path = file(setup)
    good, hosts = path.read_text(), Hosts()
    path.write_text(good.replace("first: [", "first: [1.0, ", 1))
    with pytest.raises(SampleFault, match="was edited after tokgate calibrate wrote it"):
        calibrate(setup, ["baseline"], blocks=3, bench=hosts, say=str)
    assert not hosts.runs
    # The control: brought back, the session goes on.
    path.write_text(good)
    (done,) = calibrate(setup, ["baseline"], blocks=3, bench=hosts, say=str)
    assert done.blocks == 3 and hosts.runs


def test_a_gate_that_judges_builds_by_blocks_refuses_an_edited_calibration(setup: Setup) -> None:
    calibrate(setup, ["baseline"], blocks=2, bench=Hosts(), say=str)
    path = file(setup)
    there = calibrations.path_of(
        setup.request.baselines, setup.host_classes["baseline"], "baseline", "chat-bs1", "output_tok_s"
    )
    there.parent.mkdir(parents=True)
    there.write_text(path.read_text().replace("first: [", "first: [1.0, ", 1))
    asked = replace(setup.request, budget_minutes=1.0, reference_engine="emulated:steady")
    with pytest.raises(SampleFault, match="was edited"):
        for_engine(asked, setup.engine)
    # A run that uses no calibration is not stopped by one: it tells of it at its end.
    for_engine(setup.request, setup.engine)
    there.write_text(path.read_text())
    for_engine(asked, setup.engine)


def test_missing_thin_and_old_calibrations_are_told_in_a_line(setup: Setup) -> None:
    root, now = setup.request.baselines, datetime.datetime.now(datetime.UTC)
    cases = [("baseline", "chat-bs1"), ("eagle3-graphs", "chat-bs1")]
    assert calibrations.remarks(root, "virtual", cases, "output_tok_s", now) == [
        "no calibration on virtual of 2 of 2 cases (chat-bs1[baseline], chat-bs1[eagle3-graphs]): tokgate calibrate run"
    ]
    calibrate(setup, ["baseline"], blocks=20, bench=Hosts(), say=str)
    assert calibrations.remarks(root, "virtual", cases[:1], "output_tok_s", now) == []
    later = calibrations.remarks(
        root, "virtual", cases[:1], "output_tok_s", now + datetime.timedelta(days=40)
    )
    assert "days old (limit 30)" in later[0]


def test_values_are_plain_floats_whatever_numpy_gave(setup: Setup) -> None:
    class Numpy(Hosts):
        def __call__(self, setup: Setup, plan: BlockPlan, folder: Path) -> VirtualBench:
            bench = super().__call__(setup, plan, folder)
            plain = bench.speed
            bench.speed = lambda arm, block: np.float64(plain(arm, block))
            return bench

    calibrate(setup, ["baseline"], blocks=2, bench=Numpy(), say=str)
    assert "numpy" not in file(setup).read_text()
