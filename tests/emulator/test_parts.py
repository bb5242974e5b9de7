"""The parts that need no process: acceptance, tokens, timing, scenarios, flags, fault specs."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokgate.emulator import command_line, faults, flags, prepared, server_args, tokens
from tokgate.emulator.acceptance import Acceptance, geometric_positions, mean_length
from tokgate.emulator.scenario import CONDITIONS, Scenario, names
from tokgate.emulator.sequence import PrefixCache
from tokgate.emulator.timing import Timing
from tokgate.errors import ConfigFault, UsageFault

EAGLE3 = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "d"]


@given(st.integers(1, 400), st.floats(1.0, 4.0), st.integers(1, 5))
def test_a_plan_sums_up_and_keeps_to_what_a_pass_can_yield(tokens: int, length: float, steps: int) -> None:
    acceptance = Acceptance(geometric_positions(length, steps))
    plan = acceptance.plan(tokens)
    assert sum(plan) == tokens
    assert all(1 <= count <= steps + 1 for count in plan)


@pytest.mark.parametrize("length", [1.0, 1.8, 2.0, 2.5, 2.7, 3.9])
@pytest.mark.parametrize(("requests", "new_tokens"), [(2, 48), (8, 48), (1, 512)])
def test_accept_length_of_a_run_is_the_scenarios(length: float, requests: int, new_tokens: int) -> None:
    acceptance = Acceptance(geometric_positions(length, 3))
    passes = sum(len(acceptance.plan(new_tokens - 1)) for _ in range(requests))
    # At best a whole number of passes comes nearest to it.
    rounding = 0.5 / passes
    assert requests * (new_tokens - 1) / passes == pytest.approx(length, rel=0.01 + rounding)


def test_every_run_repeats_the_same_passes() -> None:
    acceptance = Acceptance(geometric_positions(2.0, 3))
    runs = []
    for _ in range(3):
        acceptance.new_run()
        runs.append([acceptance.plan(47), acceptance.plan(47)])
    assert runs[0] == runs[1] == runs[2]
    assert sum(map(len, runs[0])) == 47


def test_passes_are_mixed_as_acceptance_per_position_says() -> None:
    acceptance = Acceptance([0.8, 0.5, 0.5])
    plan = acceptance.plan(round(1000 * acceptance.mean))
    shares = [plan.count(count) / len(plan) for count in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.2, 0.4, 0.2, 0.2], abs=0.01)
    assert mean_length([0.8, 0.5, 0.5]) == pytest.approx(1 + 0.8 + 0.4 + 0.2)


def test_tokens_depend_on_every_token_of_the_prompt_and_their_order() -> None:
    def first(prompt: list[int]) -> int:
        return tokens.next_token(tokens.Chain(prompt).state)

    base = first([1, 2, 3])
    others = {first(p) for p in ([1, 2, 4], [2, 1, 3], [1, 2, 3, 3], [9, 2, 3])}
    assert base not in others
    assert len(others) == 4


def test_a_chain_is_what_it_has_seen_however_it_came() -> None:
    grown = tokens.Chain([5])
    for token in (6, 7):
        grown.add(token)
    assert grown.state == tokens.Chain([5, 6, 7]).state


def test_the_gap_to_the_second_token_moves_little_between_shapes_and_is_sometimes_none() -> None:
    gaps = []
    for first in range(400):
        state = tokens.Chain([first]).state
        decoded, scored = (
            tokens.logprobs_of(7, state, 2, as_prompt=as_prompt)[1] for as_prompt in (False, True)
        )
        assert [token for _, token in decoded] == [token for _, token in scored]
        gap, again = (pair[0][0] - pair[1][0] for pair in (decoded, scored))
        assert abs(gap - again) <= tokens.WOBBLE + 1e-9
        gaps.append(gap)
    assert min(gaps) < 0.02
    assert max(gaps) > 1.9


def test_text_of_tokens_reads_back() -> None:
    ids = [3, 31999, 1234, 77]
    assert tokens.tokenize("".join(map(tokens.text_of, ids))) == ids
    assert tokens.tokenize("The capital of France, is?") == tokens.tokenize("The capital of France, is?")


def timing_of(name: str, condition: str, seed: int | None = None, **costs: Any) -> Timing:
    plan = Scenario(name, []).plan(condition)
    plan["costs"] |= costs
    return Timing(plan, seed)


def test_founding_figures() -> None:
    baseline = timing_of("founding", "baseline")
    assert 1 / baseline.step_s(1) == pytest.approx(82.5, rel=0.005)
    eagle = timing_of("founding", "eagle3")
    assert eagle.cycle_ms == pytest.approx(33.0)
    assert eagle.kernels_ms["verify"] == 29.1
    assert eagle.kernels_ms["draft"] + eagle.kernels_ms["draft_extend"] == pytest.approx(0.9)
    assert 2.0 / eagle.step_s(1) == pytest.approx(60.6, rel=0.001)
    assert 2.0 / timing_of("founding", "eagle3_eager").step_s(1) == pytest.approx(45, rel=0.02)
    assert timing_of("founding", "eagle3_attention_decode").cycle_ms == eagle.cycle_ms
    first = timing_of("founding-first-day", "eagle3")
    assert 2.1 / first.step_s(1) == pytest.approx(74.9, rel=0.005)
    assert 2.1 / timing_of("founding-first-day", "eagle3_eager").step_s(1) == pytest.approx(53.2, rel=0.005)
    assert 1 / timing_of("founding-first-day", "baseline").step_s(1) == pytest.approx(90, rel=0.005)


def test_founding_runs_scatter_as_recorded_and_repeat() -> None:
    def speeds(seed: int | None) -> list[float]:
        timing = timing_of("founding", "eagle3", seed)
        found = []
        for _ in range(5):
            timing.new_run()
            found.append(2.0 / timing.step_s(1))
        return found

    assert speeds(None) == pytest.approx([60.4, 65.5, 50.9, 61.5, 59.5], rel=0.001)
    assert speeds(None) == speeds(None)
    assert speeds(1) == speeds(1) != speeds(2)


def test_noise_has_the_asked_spread() -> None:
    noise = {"kind": "lognormal", "sd": 0.09, "speeds": []}
    timing = timing_of("steady", "baseline", 3, noise=noise)
    factors = []
    for _ in range(2000):
        timing.new_run()
        factors.append(timing.step_s(1) / 0.004)
    assert statistics.stdev(factors) == pytest.approx(0.09, rel=0.1)
    slow = timing_of("steady", "baseline", 3, noise={"kind": "one-sided", "sd": 0.05, "speeds": []})
    for _ in range(50):
        slow.new_run()
        assert slow.step_s(1) >= 0.004


def test_launches_differ_by_seed_only() -> None:
    steps = [timing_of("steady", "baseline", seed, launch_sd=0.05).step_s(1) for seed in range(200)]
    assert statistics.stdev(steps) / 0.004 == pytest.approx(0.05, rel=0.2)
    assert timing_of("steady", "baseline", 5, launch_sd=0.05).step_s(1) == steps[5]
    assert timing_of("steady", "baseline", 5).step_s(1) == 0.004
    assert timing_of("steady", "baseline", None, launch_sd=0.05).step_s(1) == 0.004


def test_a_batch_costs_a_little_more() -> None:
    timing = timing_of("steady", "baseline", batch_percent=2.0)
    assert timing.step_s(8) == pytest.approx(0.004 * 1.14)


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


@pytest.mark.parametrize(
    ("given_flags", "condition"),
    [
        ([], "baseline"),
        (["--disable-cuda-graph"], "baseline_eager"),
        (["--disable-decode-cuda-graph"], "baseline_eager"),
        (["--cuda-graph-backend-decode", "disabled"], "baseline_eager"),
        (EAGLE3, "eagle3"),
        ([*EAGLE3, "--disable-cuda-graph"], "eagle3_eager"),
        ([*EAGLE3, "--speculative-attention-mode", "decode"], "eagle3_attention_decode"),
        (["--speculative-attention-mode", "decode"], "baseline"),
    ],
)
def test_the_condition_comes_from_the_flags(given_flags: list[str], condition: str) -> None:
    settings = command_line.read(["--model-path", "m", "--scenario", "steady", *given_flags])
    assert settings["plan"]["condition"] == condition
    assert condition in CONDITIONS


def resolve(*given_flags: str, version: str = "0.5.15.post1") -> dict[str, Any]:
    return server_args.resolve(flags.parse(["--model-path", "m", *given_flags], version)[0], version)


def test_silent_overrides() -> None:
    assert resolve()["max_running_requests"] is None
    args = resolve(*EAGLE3, "--speculative-num-steps", "2", "--speculative-eagle-topk", "1",
                   "--speculative-num-draft-tokens", "9", "--enable-mixed-chunk")  # fmt: skip
    assert args["max_running_requests"] == 48
    assert args["speculative_num_draft_tokens"] == 3
    assert args["enable_mixed_chunk"] is False
    assert args["speculative_draft_model_revision"] == "main"
    free = resolve(*EAGLE3)
    keys = ("num_steps", "eagle_topk", "num_draft_tokens")
    assert [free[f"speculative_{key}"] for key in keys] == [5, 4, 8]
    assert resolve(*EAGLE3, "--max-running-requests", "64")["max_running_requests"] == 64
    assert resolve()["random_seed"] != resolve()["random_seed"]
    assert resolve("--random-seed", "42")["random_seed"] == 42


@pytest.mark.parametrize(
    ("version", "flag", "ok"),
    [
        ("0.5.13", ["--cuda-graph-max-bs", "8"], True),
        ("0.5.15", ["--cuda-graph-max-bs", "8"], True),
        ("0.5.20", ["--cuda-graph-max-bs", "8"], False),
        ("0.5.13", ["--cuda-graph-max-bs-decode", "8"], False),
        ("0.5.14", ["--cuda-graph-max-bs-decode", "8"], True),
        ("0.5.23", ["--cuda-graph-max-bs-decode", "8"], True),
        ("0.5.9", ["--disable-piecewise-cuda-graph"], False),
        ("0.5.13", ["--disable-piecewise-cuda-graph"], True),
        ("0.5.20", ["--disable-piecewise-cuda-graph"], False),
        ("0.5.13", ["--disable-prefill-cuda-graph"], False),
        ("0.5.14", ["--disable-prefill-cuda-graph"], True),
        ("0.5.15", ["--no-such-flag"], False),
    ],
)
def test_flags_exist_in_their_era(
    version: str, flag: list[str], ok: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if ok:
        flags.parse(["--model-path", "m", *flag], version)
        return
    with pytest.raises(SystemExit) as caught:
        flags.parse(["--model-path", "m", *flag], version)
    assert caught.value.code == 2
    if (version, flag[0]) == ("0.5.20", "--cuda-graph-max-bs"):
        assert "ambiguous option: --cuda-graph-max-bs could match" in capsys.readouterr().err


def test_capture_sizes_are_denser_under_speculation() -> None:
    assert server_args.capture_sizes(8, False) == [1, 2, 4, 8]
    assert server_args.capture_sizes(8, True) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert server_args.capture_sizes(64, False)[-1] == 64
    assert len(server_args.capture_sizes(64, True)) > len(server_args.capture_sizes(64, False))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no-such", "no fault 'no-such'"),
        ("stal", "did you mean 'stall'"),
        ("capture-hang", "needs an argument"),
        ("capture-hang:verify", "none of target-verify"),
        ("capture-hang:draft-extend@3", "no rank"),
        ("stall:x", "no number"),
        ("stall:1.5", "positive number"),
        ("slow:0", "positive number"),
        ("abort@TP1", "cannot name a rank"),
        ("accept-one:2", "takes no argument"),
        ("odd-rank:3", "no rank"),
        ("stall:4/0", "no number of launches"),
        ("stall:4/x", "no number of launches"),
    ],
)
def test_bad_fault_specs(spec: str, message: str) -> None:
    with pytest.raises(faults.FaultSpecError, match=message):
        faults.parse(spec)


def test_a_fault_of_some_launches_is_known_by_the_launch_seed() -> None:
    specs = ["capture-hang:draft-extend@TP1/3", "stall"]
    due = [seed for seed in range(9) if "capture-hang" in faults.Faults(specs, seed)]
    assert due == [2, 5, 8]
    assert "capture-hang" not in faults.Faults(specs)
    assert "capture-hang" in faults.Faults(["capture-hang:draft-extend"])
    assert all("stall" in faults.Faults(specs, seed) for seed in range(9))
    assert faults.Faults(specs, 2).has("capture-hang", "draft-extend", 1)


def test_every_fault_is_documented_and_parses() -> None:
    arguments = {"capture-hang": ":draft-extend@TP3", "start-exit": ":weights", "odd-rank": ":TP2"}
    for name, kind in faults.KINDS.items():
        assert name in faults.overview()
        assert kind.help
        assert faults.parse(name + arguments.get(name, "")).name == name
    with pytest.raises(UsageFault, match="capture-hang:KIND"):
        command_line.read(["--model-path", "m", "--fault", "nothing"])


@pytest.mark.parametrize(
    ("spec", "given_flags", "reason"),
    [
        ("capture-hang:draft-extend", [], "it is not captured"),
        ("capture-hang:target-decode", EAGLE3, "it is not captured"),
        ("capture-hang:target-decode@TP3", ["--tp-size", "2"], "no rank TP3"),
        ("capture-hang:target-decode", ["--disable-cuda-graph"], "it is not captured"),
        ("odd-rank:TP1", [], "no rank TP1"),
        ("accept-one", [], "no speculation"),
        ("not-replayed", ["--disable-cuda-graph"], "no graphs"),
        ("capture-hang:target-verify@TP1", [*EAGLE3, "--tp-size", "2"], ""),
        ("accept-one", EAGLE3, ""),
        ("stall", [], ""),
    ],
)
def test_a_fault_that_cannot_happen_here_is_said(
    spec: str, given_flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line.read(["--model-path", "m", "--scenario", "steady", "--fault", spec, *given_flags])
    said = capsys.readouterr().err
    assert (f"warning: fault {spec} cannot happen here: {reason}" in said) == bool(reason)
    assert bool(said) == bool(reason)


def test_prefix_cache_counts_shared_prefixes() -> None:
    cache = PrefixCache(enabled=True)
    assert cache.match([1, 2, 3, 4]) == 0
    cache.add([1, 2, 3, 4])
    assert cache.match([1, 2, 9]) == 2
    assert cache.match([1, 2, 3, 4]) == 3
    cache.clear()
    assert cache.match([1, 2, 3, 4]) == 0
    off = PrefixCache(enabled=False)
    off.add([1, 2, 3])
    assert off.match([1, 2, 3]) == 0
