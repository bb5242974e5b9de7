"""What a bump judges: gated on this kind of engine, and told by runs of workloads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.bump.simulation import CONFIG, ask_of
from tokgate.bump.question import metrics_asked
from tokgate.config.engine import EngineKind
from tokgate.config.gate import Limit, load_gate
from tokgate.errors import UsageFault

GATE = load_gate(CONFIG / "gate.yaml")
OF_WORKLOADS = ("output_tok_s", "accept_length", "ttft_s_p50", "step_ms_p50")


@pytest.mark.parametrize("kind", ["emulated", "cpu", "gpu"])
def test_memory_and_phases_of_the_start_are_not_judged_of_workloads(kind: EngineKind) -> None:
    assert metrics_asked(GATE, (), kind) == OF_WORKLOADS


def test_a_metric_of_other_engines_is_not_asked() -> None:
    limits = {
        **GATE.metrics,
        "decode_tok_s": Limit(unit="tok/s", better="higher", limit_percent=3, engines=["gpu"]),
    }
    gate = GATE.model_copy(update={"metrics": limits})
    assert "decode_tok_s" in metrics_asked(gate, (), "gpu")
    assert metrics_asked(gate, (), "cpu") == OF_WORKLOADS
    with pytest.raises(UsageFault, match="'decode_tok_s' is not gated of workloads on cpu engines"):
        metrics_asked(gate, ("decode_tok_s",), "cpu")


def test_a_start_that_is_not_gated_here_takes_no_share_of_alpha() -> None:
    ask = ask_of(1, profiles=("baseline",))
    assert ask.startup_question("baseline") is not None
    assert ask.alpha == pytest.approx(GATE.statistics.alpha / 2)
    startup = GATE.metrics["startup_s"].model_copy(update={"engines": ["gpu"]})
    gate = GATE.model_copy(update={"metrics": {**GATE.metrics, "startup_s": startup}})
    other = replace(ask, gate=gate)
    assert other.startup_question("baseline") is None
    assert other.alpha == pytest.approx(GATE.statistics.alpha)
