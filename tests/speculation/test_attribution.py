"""A change of speed under speculation, laid to acceptance or to the cost of a cycle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gate.runs import ROOT
from tokgate import accepting
from tokgate.config.gate import load_gate
from tokgate.gate.judge import Judge
from tokgate.gate.runs import Measured
from tokgate.load.sample import Sample
from tokgate.verdict import Kind, Verdict

Make = Callable[..., Sample]
NOISE = (-0.002, 0.001, 0.0, 0.002, -0.001)
GATE = load_gate(ROOT / "perf_tests/gate.yaml")


def runs(make: Make, accept: float, cycle_ms: float, launch: str = "l1", streams: int = 1) -> list[Sample]:
    """Runs whose rate is accept length x streams / cycle time, give or take a little."""
    return [
        make(
            {
                "accept_length": accept * (1 + noise / 10),
                "output_tok_s": 1e3 * accept * streams / cycle_ms * (1 + noise),
            },
            run=number,
            launch=launch,
            profile="eagle3-graphs",
        )
        for number, noise in enumerate(NOISE)
    ]


@pytest.fixture
def judged(make_sample: Make, tmp_path: Path) -> Callable[..., Verdict]:
    """The verdict on a metric now, against ten stored sessions of accept length 2.0 and cycles of 33 ms."""
    for session in range(10):
        accepting.accept(
            tmp_path,
            runs(make_sample, 2.0, 33.0, launch=f"s{session}"),
            run=f"r{session}",
            reason="record",
            metrics=["output_tok_s", "accept_length"],
            new_epoch=False,
            tokgate_version="0.1.0",
        )

    def judge(accept: float, cycle_ms: float, metric: str = "output_tok_s") -> Verdict:
        now = tuple(runs(make_sample, accept, cycle_ms))
        measured = Measured(now, (), tuple(Path(f"{s.identity.run}.json") for s in now))
        return Judge(GATE, tmp_path, "tokgate accept", 1).against_baseline(measured, metric)

    return judge


def body(verdict: Verdict) -> str:
    return "\n".join(verdict.body)


def test_a_slower_cycle_is_laid_to_the_cycle(judged: Callable[..., Verdict]) -> None:
    verdict = judged(2.0, 36.3)
    assert verdict.kind is Kind.REGRESSION
    assert verdict.evidence["laid_to"] == "cycle time"
    assert "of it, cycle time 33 -> 36.3 ms: -9.1 % of tok/s" in body(verdict)
    assert "laid to the cost of a cycle alone" in body(verdict)


def test_fewer_accepted_tokens_are_laid_to_acceptance(judged: Callable[..., Verdict]) -> None:
    verdict = judged(1.8, 33.0)
    assert verdict.kind is Kind.REGRESSION
    assert verdict.evidence["laid_to"] == "acceptance"
    assert "of it, accept length 2 -> 1.8 tokens: -10.0 % of tok/s" in body(verdict)


def test_acceptance_lost_behind_faster_steps_is_said_and_fails_on_accept_length(
    judged: Callable[..., Verdict],
) -> None:
    """The rate alone shows nothing: 10 % fewer tokens a cycle, 10 % shorter cycles."""
    rate = judged(1.8, 29.7)
    assert rate.outcome == "green"
    assert rate.evidence["masked"] is True
    assert rate.evidence["laid_to"] == "both"
    assert "masked: acceptance and the cycle moved against each other" in body(rate)
    accepted = judged(1.8, 29.7, "accept_length")
    assert accepted.kind is Kind.REGRESSION


def test_nothing_moved_is_laid_to_nothing(judged: Callable[..., Verdict]) -> None:
    verdict = judged(2.0, 33.0)
    assert verdict.outcome == "green"
    assert verdict.evidence["laid_to"] == "none"
    assert verdict.evidence["masked"] is False


def test_intervals_are_given(judged: Callable[..., Verdict]) -> None:
    assert body(judged(1.8, 33.0)).count("95 % CI") == 2


def test_without_accept_lengths_nothing_is_laid_to_anything(make_sample: Make, tmp_path: Path) -> None:
    plain = [make_sample({"output_tok_s": 82.0 + noise}, run=n) for n, noise in enumerate(NOISE)]
    accepting.accept(
        tmp_path,
        plain,
        run="r",
        reason="record",
        metrics=["output_tok_s"],
        new_epoch=False,
        tokgate_version="0.1.0",
    )
    measured = Measured(tuple(plain), (), tuple(Path(f"{n}.json") for n in range(len(plain))))
    verdict = Judge(GATE, tmp_path, "tokgate accept", 1).against_baseline(measured, "output_tok_s")
    assert "laid_to" not in verdict.evidence
    assert "of it, " not in body(verdict)
