"""Scenarios: the packaged ones, faults of a file, overrides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokgate.emulator import prepared
from tokgate.emulator.scenario import Scenario, names
from tokgate.errors import ConfigFault, UsageFault


def test_packaged_scenarios_are_valid_and_prepared() -> None:
    assert {"founding", "founding-first-day", "steady"} <= set(names())
    stored = json.loads(prepared.STORE.read_text())
    assert stored == json.loads(json.dumps(prepared.prepare())), "run: python -m tokgate.emulator.prepared"


def test_an_edited_scenario_is_not_taken_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prepared.plan_of("steady", "baseline") is not None
    text = (prepared.SCENARIOS / "steady.yaml").read_text()
    (tmp_path / "steady.yaml").write_text(text.replace("step_ms: 4.0", "step_ms: 5.0"))
    monkeypatch.setattr(prepared, "SCENARIOS", tmp_path)
    assert prepared.plan_of("steady", "baseline") is None


def test_faults_of_a_scenario_file_are_listed_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "description: bad\n"
        "baseline:\n"
        "  step_sm: 4\n"
        "eagle3:\n"
        "  step_ms: 4\n"
        "nois: {kind: none}\n"
    )  # fmt: skip
    with pytest.raises(ConfigFault) as caught:
        Scenario(str(path), [])
    text = str(caught.value)
    assert f"{path}:3: baseline.step_sm: unknown key; did you mean 'step_ms'?" in text
    assert f"{path}:6: nois: unknown key; did you mean 'noise'?" in text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("baseline: {step_ms: -1}", "greater than 0"),
        ("baseline: {step_ms: 4, accept_length: 2}", "no acceptance"),
        ("eagle3: {verify_ms: 4, draft_ms: 1}", "either 'accept_length' or 'acceptance'"),
        ("eagle3: {step_ms: 4}", "needs verify_ms and draft_ms"),
        ("baseline: {verify_ms: 4, draft_ms: 1, accept_length: 2}", "needs step_ms"),
        ("noise: {kind: recorded, sd: 0.1}", "'speeds' belong to"),
    ],
)
def test_inconsistent_figures_are_refused(tmp_path: Path, body: str, message: str) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(f"description: x\n{body}\n")
    with pytest.raises(ConfigFault, match=message):
        Scenario(str(path), [])


def test_overrides() -> None:
    plan = Scenario("founding", ["baseline.step_ms=13.3", "startup.weights_s=0"]).plan("baseline")
    assert plan["costs"]["step_ms"] == 13.3
    assert plan["startup"]["weights_s"] == 0
    for override, message in (
        ("baseline.step_ms", "expected KEY=VALUE"),
        ("basline.step_ms=1", "did you mean 'baseline'"),
        ("baseline.step_ms=fast", "step_ms"),
        ("baseline.step_msx=1", "did you mean 'step_ms'"),
    ):
        with pytest.raises(UsageFault, match=message):
            Scenario("founding", [override])


def test_a_condition_without_figures_is_said_to_be_absent() -> None:
    with pytest.raises(UsageFault, match="no figures for eagle3 attention decode"):
        Scenario("founding-first-day", []).plan("eagle3_attention_decode")
    with pytest.raises(UsageFault, match="did you mean 'founding'"):
        Scenario("foundin", [])
