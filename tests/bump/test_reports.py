"""The reports of a bump: under 60 lines with the table first, JUnit, HTML with plots, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tokgate.bump.campaign import Campaign
from tokgate.bump.outcome import report_of
from tokgate.bump.stack import Stack
from tokgate.load.sample import Void
from tokgate.report.bump_html import page
from tokgate.report.bump_junit import junit
from tokgate.report.bump_markdown import MARK, comment
from tokgate.report.bump_record import SPEED_OF, BumpReport, Difference
from tokgate.verdict import Kind, Verdict

OLD = Stack({"sglang": "0.5.13", "torch": "2.9.0", "leftpad": "1"}, cuda="12.8")
NEW = Stack({"sglang": "0.5.15", "torch": "2.11.0", "leftpad": "2"}, cuda="13.0")


@pytest.fixture
def report(campaign: Callable[..., Campaign]) -> BumpReport:
    """A regression on virtual servers."""
    found = campaign(-0.6, profiles=("baseline", "eagle3-graphs"))
    return report_of(
        found, header=["old: a; new: b", "profiles"], stacks=(OLD, NEW), again="tokgate bump --resume x"
    )


def test_the_comment_has_its_mark_then_the_verdict_then_the_table(report: BumpReport) -> None:
    lines = comment(report).splitlines()
    assert lines[0] == MARK
    assert lines[1].startswith("### tokgate: 2 REGRESSION: SGLang 0.6.1 -> 0.6.2")
    assert lines[3].startswith("| verdict | case | metric |")
    assert lines[5].startswith("| REGRESSION | chat-bs1[baseline] | output_tok_s |")
    text = "\n".join(lines)
    assert "torch 2.9.0 -> 2.11.0" in text
    assert "CUDA of torch 12.8 -> 13.0" in text
    assert "; 1 other package" in text
    assert "control: the old version" in text


def test_the_comment_stays_under_60_lines_whatever_happened(report: BumpReport) -> None:
    many = [
        Verdict(kind, f"w{n}[p|{n}]", "headline\n" * 3, body=("line",) * 30, files=("f",) * 9)
        for n in range(40)
        for kind in (Kind.REGRESSION, Kind.HANG, Kind.INCONCLUSIVE, Kind.PASS)
    ]
    moved = [Difference(f"p{n}", "1", "2") for n in range(99)]
    crowded = replace(
        report,
        verdicts=many,
        moved=moved,
        defaults=moved,
        memory=moved,
        remarks=["r"] * 50,
        header=["h"] * 50,
        again="tokgate bump --resume x",
    )
    for text in (comment(crowded), comment(replace(report, verdicts=(), moved=(), header=()))):
        assert len(text.splitlines()) < 60
    assert "more" in comment(crowded)
    assert comment(crowded).splitlines()[-1].startswith("go on: ")


def test_what_goes_on_is_named_while_there_is_something_to_go_on_with(
    campaign: Callable[..., Campaign],
) -> None:
    for minutes, blocks, goes_on in ((6.0, 12, True), (None, 3, False)):
        found = campaign(-0.04, minutes=minutes, blocks=blocks)
        told = report_of(found, header=[], stacks=(OLD, NEW), again="tokgate bump --resume x")
        assert bool(told.again) == goes_on
        assert ("the budget is spent" in comment(told)) == goes_on


def test_engines_of_one_version_are_told_apart_by_name(campaign: Callable[..., Campaign]) -> None:
    found = campaign(0.0, blocks=3)
    for new, title in (
        (replace(found.ask.old, name="planted"), "SGLang 0.6.1 (virtual-0.6.1) -> 0.6.1 (planted)"),
        (found.ask.old, "SGLang 0.6.1 against itself (A/A)"),
    ):
        found.ask = replace(found.ask, new=new)
        assert report_of(found, header=[], stacks=(OLD, OLD), again="").title == title


def test_minutes_are_a_gpus_where_there_is_one(report: BumpReport) -> None:
    assert "GPU" not in comment(report).split("blocks, ")[1].split(", ended")[0]
    on_a_gpu = replace(report, facts={**report.facts, "engine_kind": "gpu"})
    assert " GPU minutes, ended" in comment(on_a_gpu)


def test_a_bump_that_measured_nothing_says_so(campaign: Callable[..., Campaign]) -> None:
    found = campaign(0.0, minutes=0.0)
    told = report_of(found, header=[], stacks=(OLD, OLD), again="x")
    assert "no block was measured" in comment(told)
    assert {v.kind for v in told.verdicts} == {Kind.INCONCLUSIVE}


def test_causes_of_void_runs_that_nobody_watched_are_named(campaign: Callable[..., Campaign]) -> None:
    """The virtual servers count nothing."""
    told = report_of(campaign(0.0, blocks=3), header=[], stacks=(OLD, OLD), again="")
    named = [line for line in told.remarks if "not watched in" in line]
    assert [line.partition(":")[0] for line in named] == ["client_lag", "scheduler_run_delay", "steal"]
    assert "steal: not watched in" in comment(told)


def test_what_disturbed_runs_that_count_is_told_where_it_scatters(campaign: Callable[..., Campaign]) -> None:
    """On an engine without a GPU contention voids no run: the verdict's scatter has its cause beside it."""
    found = campaign(0.0, blocks=3)
    assert "contention" not in comment(report_of(found, header=[], stacks=(OLD, OLD), again=""))
    (group,) = found.groups
    block = group.runner.blocks[1]
    arm = block.arms["new_baseline"]
    measured = arm.workloads["chat-bs1"]
    steal = Void("steal", 9.0, 1.0, "%", "another machine took 9 % of the CPU")
    disturbed = replace(
        measured, samples=(replace(measured.samples[0], advisory=(steal,)), *measured.samples[1:])
    )
    arm = replace(arm, workloads={**arm.workloads, "chat-bs1": disturbed})
    group.runner.blocks[1] = replace(block, arms={**block.arms, "new_baseline": arm})
    told = comment(report_of(found, header=[], stacks=(OLD, OLD), again=""))
    assert "; under contention 0 of 12 runs of old, 1 of 12 runs of new: steal\n" in told


def test_junit_counts_what_is_open_as_skipped_and_never_as_passed(report: BumpReport) -> None:
    open_ = Verdict(Kind.INCONCLUSIVE, "w[p]", "open \x1b[0m", evidence={"metric": "m"})
    root = ElementTree.fromstring(junit(replace(report, verdicts=[*report.verdicts, open_])))
    (suite,) = root.iter("testsuite")
    failed = sum(v.outcome == "failed" for v in report.verdicts)
    assert int(suite.get("failures", "")) == failed > 0
    cases = list(suite.iter("testcase"))
    assert len(cases) == int(suite.get("tests", "")) == len(report.verdicts) + 1
    assert cases[-1].find("skipped") is not None
    messages = [f.get("message", "") for f in suite.iter("failure")]
    assert all(message.startswith("REGRESSION") for message in messages)


def test_the_page_has_a_plot_for_each_verdict_over_blocks(report: BumpReport) -> None:
    text = page(report)
    assert text.count("<svg") == len(report.speed()) >= 2
    assert "2 REGRESSION" in text
    assert "torch" in text


def test_json_holds_every_run(report: BumpReport) -> None:
    data = json.loads(json.dumps(report.to_json()))
    told = data["verdicts"][0]["evidence"]
    assert len(told["old_runs"]) == told["blocks"] >= 3
    assert all(len(runs) == 4 for runs in told["old_runs"])
    assert data["title"] == "SGLang 0.6.1 -> 0.6.2"


def speed(kind: Kind, profile: str, metric: str = "output_tok_s", **told: object) -> Verdict:
    """A verdict on the speed of a workload."""
    evidence = {"profile": profile, "metric": metric, SPEED_OF: True, **told}
    return Verdict(kind, f"w[{profile}]", "headline", evidence=evidence)


GREEN = (Verdict(Kind.PASS, "parity[p]", "equal"), Verdict(Kind.PASS, "w[p]", "graph replay"))


@pytest.mark.parametrize(
    ("verdicts", "code", "unanswered"),
    [
        ([speed(Kind.INCONCLUSIVE, "p")], 3, ["p"]),
        ([speed(Kind.INCONCLUSIVE, "p"), speed(Kind.PASS, "p", "step_ms_p50")], 0, []),
        ([speed(Kind.PASS, "p"), speed(Kind.INCONCLUSIVE, "q")], 3, ["q"]),
        ([speed(Kind.PASS, "p"), speed(Kind.IMPROVED, "q")], 0, []),
        ([speed(Kind.REGRESSION, "p"), speed(Kind.INCONCLUSIVE, "q")], 1, ["q"]),
        ([speed(Kind.PASS, "p"), Verdict(Kind.HANG, "bump[q]", "x", evidence={"profile": "q"})], 1, []),
        ([], 0, []),
    ],
)
def test_equal_answers_do_not_stand_for_a_speed_that_nobody_knows(
    report: BumpReport, verdicts: list[Verdict], code: int, unanswered: list[str]
) -> None:
    told = replace(report, verdicts=[*GREEN, *verdicts])
    assert (told.exit_code(), told.unanswered) == (code, unanswered)
    first = comment(told).splitlines()[1]
    assert ("no verdict on the speed of" in first) == bool(unanswered)
    assert all(profile in first for profile in unanswered)


def test_only_the_speed_of_workloads_answers_a_bump(campaign: Callable[..., Campaign]) -> None:
    """Start-up is judged over blocks as well, and is another question."""
    told = report_of(campaign(0.0, blocks=3), header=[], stacks=(OLD, OLD), again="")
    marked = {v.evidence["metric"]: v.evidence.get(SPEED_OF) for v in told.verdicts}
    assert (marked["output_tok_s"], marked["startup_s"]) == (True, False)


def test_a_headline_is_not_cut_in_the_middle(report: BumpReport) -> None:
    headline = (
        "CUDA graphs: 192 of 192 decode passes replayed; captured target-decode 1 2 4 8, draft-extend 1 2 4 8"
    )
    text = comment(replace(report, verdicts=[Verdict(Kind.PASS, "w[p]", headline)]))
    assert headline in text


def test_what_servers_left_behind_is_told_once(campaign: Callable[..., Campaign]) -> None:
    found = campaign(0.0, blocks=3, profiles=("baseline", "eagle3-graphs"))
    for group in found.groups:
        group.runner._bench.remarks += ["processes left behind were killed: a (pid 7)"] * 2
    told = report_of(found, header=[], stacks=(OLD, OLD), again="")
    assert [line for line in told.remarks if "left behind" in line] == [
        "processes left behind were killed: a (pid 7) (baseline, eagle3-graphs)"
    ]
