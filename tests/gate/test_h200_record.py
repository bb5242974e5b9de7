"""The run recorded on an H200 (SGLang 0.5.15.post1, 2026-11-29), judged again with no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.gate.runs import ROOT
from tokgate import accepting
from tokgate.config.gate import load_gate
from tokgate.config.profiles import load_profiles
from tokgate.config.workloads import load_workloads
from tokgate.gate.cycle.net_gain import judge_net_gain
from tokgate.gate.judge import Judge
from tokgate.gate.results import read_run, read_verdicts
from tokgate.gate.runs import Measured
from tokgate.load.prompts import build
from tokgate.load.sample import Sample, read_samples
from tokgate.models.dial import Dial
from tokgate.models.presets import find_preset
from tokgate.models.rule import build_rule
from tokgate.verdict import Kind

RUN = next((ROOT / "tests/assets/h200").glob("*-*-*"))
WORKLOADS = ("chat-bs1", "chat-bs4", "chat-bs8")


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return [sample for sample in read_samples(RUN / "samples") if not sample.void]


def measured(samples: list[Sample], profile: str, workload: str) -> Measured:
    mine = [s for s in samples if (s.identity.profile, s.identity.workload) == (profile, workload)]
    return Measured(tuple(mine), (), tuple(Path(f"{s.identity.run}.json") for s in mine))


def test_the_stored_baselines_are_those_of_this_run(samples: list[Sample], tmp_path: Path) -> None:
    facts = read_run(RUN)
    startups = sorted({m for s in samples if s.identity.workload == "startup" for m in s.metrics})
    written = accepting.accept(
        tmp_path,
        samples,
        run=facts["run"],
        reason="first record on the H200",
        metrics=[*facts["gated_metrics"], *startups],
        new_epoch=False,
        tokgate_version="0.1.0",
    )
    assert len(written) == 8
    for path in written:
        stored = ROOT / "baselines" / path.relative_to(tmp_path)
        again = yaml.safe_load(path.read_text())
        # Recorded before sessions had a reason of their own.
        assert again["epochs"][0]["sessions"][0].pop("reason") == "first record on the H200"
        assert yaml.safe_load(stored.read_text()) == again


def test_the_shipped_configuration_still_fits_them(samples: list[Sample]) -> None:
    """A changed profile or workload would make the stored baselines incomparable: record anew, then."""
    profiles = load_profiles(ROOT / "perf_tests/profiles.yaml")
    workloads = load_workloads(ROOT / "perf_tests/workloads.yaml", "gpu")
    for sample in samples:
        assert sample.identity.profile_digest == profiles.get(sample.identity.profile).digest
        if sample.identity.workload != "startup":
            assert sample.identity.workload_digest == workloads.get(sample.identity.workload).digest


@pytest.mark.parametrize("workload", WORKLOADS)
def test_judged_again_the_verdicts_are_the_same(samples: list[Sample], workload: str) -> None:
    known = load_workloads(ROOT / "perf_tests/workloads.yaml", "gpu").get(workload)
    again = judge_net_gain(
        known, measured(samples, "eagle3-graphs", workload), measured(samples, "baseline", workload)
    )
    recorded = [
        v
        for v in read_verdicts(RUN)
        if v.subject == f"{workload}[eagle3-graphs]" and v.evidence.get("metric") == "decode_tok_s"
    ]
    # Recorded before line 1 said so of what is undecided.
    headline = again.headline.removesuffix(", beyond the limit -3 %")
    assert [(v.kind, v.headline) for v in recorded] == [(again.kind, headline)]
    assert (headline != again.headline) == (workload == "chat-bs1")


@pytest.mark.parametrize("workload", WORKLOADS)
def test_verify_counts_were_exactly_as_predicted(samples: list[Sample], workload: str) -> None:
    rule = build_rule(find_preset("1b"), 0, Dial("accept_length", 2.5, 3), None)
    prompts = build(load_workloads(ROOT / "perf_tests/workloads.yaml", "gpu").get(workload), 128256)
    predicted = [rule.verify_count(ids, 512, 3) for ids in prompts.ids or ()]
    of_case = measured(samples, "eagle3-graphs", workload)
    assert [r.verify_count for s in of_case.samples for r in s.requests] == predicted * len(of_case.samples)
    judge = Judge(load_gate(ROOT / "perf_tests/gate.yaml"), ROOT / "baselines", "tokgate accept", 31)
    assert judge.accept_length(of_case, predicted).kind is Kind.PASS
    # One verify pass more in one request is seen: nothing is averaged away.
    off = judge.accept_length(of_case, [predicted[0] - 1, *predicted[1:]])
    assert off.kind is Kind.REGRESSION
