"""A bump on virtual servers: verdicts, budgets, faults, and that a crash at any step changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.bump.simulation import VERSIONS, bumps
from benchmarks.bump.virtual_servers import large
from tests.bump.conftest import speed_of
from tokgate.bump.campaign import Campaign
from tokgate.bump.verdicts import verdicts
from tokgate.errors import Exited, SampleFault, UsageFault
from tokgate.gate.blocks.bench import ArmFailed
from tokgate.verdict import Kind, exit_code

Make = Callable[..., Campaign]


def test_a_large_loss_is_a_regression_and_a_control_is_not(campaign: Make) -> None:
    slow, same = verdicts(campaign(-0.6)), verdicts(campaign(0.0))
    assert speed_of(slow).kind is Kind.REGRESSION
    assert exit_code(slow) == 1
    assert not [v for v in same if v.outcome == "failed"]


def test_it_stops_as_soon_as_it_is_decided(campaign: Make) -> None:
    early = campaign(-0.6)
    assert early.spent is not None
    assert early.spent.reason == "decided"
    assert early.spent.blocks < 12


def test_where_nothing_is_judged_over_blocks_three_are_measured_for_the_rest(campaign: Make) -> None:
    found = campaign(0.0, profiles=("baseline", "eagle3-graphs"), metrics=("accept_length",))
    assert [len(group.runner.blocks) for group in found.groups] == [3, 3]
    accept = [v for v in verdicts(found) if v.evidence["metric"] == "accept_length"]
    assert [v.evidence["profile"] for v in accept] == ["eagle3-graphs"]
    assert all("no block" not in v.headline for v in verdicts(found))
    assert len(campaign(-0.04, metrics=("output_tok_s",)).groups[0].runner.blocks) > 3


def test_a_budget_is_named_only_where_one_ended_it(campaign: Make) -> None:
    spent = campaign(0.0, minutes=0.0, profiles=("eagle3-graphs",))
    assert {"within the budget" in v.headline for v in verdicts(spent)} == {True}
    stopped = campaign(0.0, run=False, profiles=("eagle3-graphs",))
    assert {v.headline.partition(": ")[2] for v in verdicts(stopped)} == {
        "interrupted before a block was measured"
    }


def test_an_open_verdict_says_how_many_blocks_and_what_could_be_seen(campaign: Make) -> None:
    verdict = speed_of(verdicts(campaign(-0.04, blocks=3)))
    assert verdict.kind is Kind.INCONCLUSIVE
    assert any(line.startswith("further blocks needed:") for line in verdict.body)
    assert any("smallest change detectable now" in line for line in verdict.body)
    assert verdict.evidence["smallest_detectable_percent"] > verdict.evidence["limit_percent"]  # type: ignore[operator]


def test_the_budget_is_kept_and_spent_where_the_verdict_is_open(campaign: Make) -> None:
    found = campaign(-0.04, profiles=("baseline", "eagle3-graphs"), minutes=8.0)
    assert found.spent is not None
    assert found.spent.reason == "minutes"
    assert found.spent.seconds <= 8 * 60
    assert {v.kind for v in verdicts(found)} >= {Kind.INCONCLUSIVE}


def test_both_versions_are_launched_in_random_order_and_their_runs_interleaved(campaign: Make) -> None:
    (group,) = campaign(0.0, blocks=12).groups
    plan = group.runner.plan
    launches = {plan.launch_order(number) for number in range(12)}
    runs = {plan.run_order(number, "chat-bs1") for number in range(12)}
    assert launches == {("old_baseline", "new_baseline"), ("new_baseline", "old_baseline")}
    old, new = "old_baseline", "new_baseline"
    assert runs == {(old, new, new, old, new, old, old, new), (new, old, old, new, old, new, new, old)}


def test_a_hang_of_the_new_version_is_its_verdict_and_other_profiles_go_on(campaign: Make) -> None:
    def hang(what: str) -> None:
        pass

    found = verdicts(campaign(0.0, hangs=(VERSIONS[1],), before=hang, profiles=("baseline", "eagle3-graphs")))
    assert [v.kind for v in found] == [Kind.HANG, Kind.HANG]
    assert found[0].subject == "bump[baseline]"
    assert "new version" in found[0].headline
    assert exit_code(found) == 1


def test_a_hang_of_the_old_version_compares_nothing(campaign: Make) -> None:
    (found,) = verdicts(campaign(0.0, hangs=(VERSIONS[0],)))
    assert found.kind is Kind.INCOMPARABLE
    assert "HANG of the old version" in found.headline


def test_memory_that_is_short_for_two_servers_is_no_verdict(tmp_path: Path, campaign: Make) -> None:
    """The servers are started one after the other from then on, and that is kept for a later call."""

    def short(what: str) -> None:
        if what == "start 0" and not (tmp_path / "state.json").exists():
            fault = Exited("weight loading: died", ["torch.OutOfMemoryError: CUDA out of memory"])
            raise ArmFailed("new_baseline", fault)

    found = campaign(-0.6, folder=tmp_path, before=short)
    assert not found.faults
    assert json.loads((tmp_path / "state.json").read_text())["pairing"] == "apart"
    assert not found.groups[0].runner.plan.together
    assert speed_of(verdicts(found)).kind is Kind.REGRESSION
    assert "do not fit at once" in found.remarks[0]


def test_a_fault_is_kept_and_not_tried_again_until_it_is_green(tmp_path: Path, campaign: Make) -> None:
    first = verdicts(campaign(0.0, folder=tmp_path, hangs=(VERSIONS[1],)))
    second = verdicts(campaign(0.0, folder=tmp_path))
    assert [v.text() for v in second] == [v.text() for v in first]


def test_another_ask_in_the_same_folder_is_refused(tmp_path: Path, campaign: Make) -> None:
    campaign(0.0, folder=tmp_path, blocks=3)
    with pytest.raises(UsageFault, match="another plan"):
        campaign(0.0, folder=tmp_path, blocks=3, seed=4)


def test_a_bump_whose_samples_were_edited_is_not_taken_up(tmp_path: Path, campaign: Make) -> None:
    campaign(0.0, folder=tmp_path, blocks=3)
    assert len(campaign(0.0, folder=tmp_path, blocks=3, run=False).groups[0].runner.blocks) == 3
    edited = sorted(tmp_path.glob("*/new_baseline/samples/baseline/chat-bs1/*.sample.json"))[0]
    edited.write_text(edited.read_text().replace('"output_tok_s":', '"output_tok_s":1'))
    started: list[str] = []
    with pytest.raises(SampleFault, match="is not as it was stored") as caught:
        campaign(0.0, folder=tmp_path, blocks=6, before=started.append)
    assert str(edited) in caught.value.headline and not started


class Killed(BaseException):
    """The process is gone: nobody catches this."""


class Executioner:
    """Kills at the n-th step: before a start, before a run, or before a file is put in place."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


def test_a_crash_at_any_step_resumes_to_the_same_verdict(
    tmp_path: Path, campaign: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace
    whole = Executioner(0)
    whole.left = 1 << 30

    def run(folder: Path, executioner: Executioner) -> str:
        def put(self: Path, target: Path) -> Path:
            executioner()
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", put)
        try:
            found = campaign(-0.6, folder=folder, before=executioner, blocks=3)
        finally:
            monkeypatch.setattr(Path, "replace", replace)
        return "\n".join(v.text() for v in verdicts(found))

    wanted = run(tmp_path / "whole", whole)
    steps = (1 << 30) - whole.left
    assert "REGRESSION" in wanted
    assert steps > 50
    for at in range(1, steps + 1):
        folder = tmp_path / str(at)
        with pytest.raises(Killed):
            run(folder, Executioner(at))
        assert run(folder, Executioner(1 << 30)) == wanted, f"killed at step {at}"


def test_a_crash_while_a_line_of_state_is_written_leaves_the_old_one(tmp_path: Path, campaign: Make) -> None:
    campaign(0.0, folder=tmp_path, hangs=(VERSIONS[1],))
    (tmp_path / ".state.json.1.2").write_text("{", encoding="utf-8")
    assert campaign(0.0, folder=tmp_path, run=False).faults


def test_a_few_bumps_of_a_version_against_itself_do_not_alarm() -> None:
    assert bumps(15).alarmed <= 1


@pytest.mark.slow
def test_200_bumps_of_a_version_against_itself_alarm_at_most_twice() -> None:
    found = bumps(200)
    assert found.alarmed <= 2, found


@pytest.mark.slow
def test_half_the_speed_is_found_in_most_of_40_bumps() -> None:
    assert bumps(40, -0.5).alarmed >= 36


def test_parity_without_answers_is_undecided_and_said(campaign: Make) -> None:
    """Virtual servers answer nothing: what was asked for is named, and what was not asked for is no verdict."""
    measured = campaign(0.0, blocks=3)
    told = [v for v in verdicts(measured, ["batch-1"]) if v.evidence.get("metric") == "greedy parity"]
    assert [(v.kind, v.subject) for v in told] == [(Kind.INCONCLUSIVE, "parity-batch-1[baseline]")]
    assert "no block holds the answers of both versions" in told[0].headline
    assert not [v for v in verdicts(measured) if v.subject.startswith("parity")]


def test_graphs_of_which_nothing_is_known_are_undecided_and_said(campaign: Make) -> None:
    """Virtual servers leave no facts: absent is no pass, and the row is there."""
    (told,) = [v for v in verdicts(campaign(0.0, blocks=3)) if v.evidence.get("metric") == "graph replay"]
    assert (told.kind, told.subject) == (Kind.INCONCLUSIVE, "chat-bs1[baseline]")
    assert "the launches of the new version left no facts" in told.headline
    assert "the old version: its launches left no facts" in told.body


def test_the_8b_pairs_noise_lets_a_bump_decide() -> None:
    """Launches of the last recorded bump: no alarm without a change, every one of 5 % found, few blocks."""
    same, slower = bumps(10, noise=large()), bumps(10, -0.05, noise=large())
    assert (same.alarmed, same.passed) == (0, 10)
    assert slower.alarmed == 10
    assert max(same.blocks, slower.blocks) < 12
