"""Command line: the condition that flags ask for, silent overrides, flags by version."""

from __future__ import annotations

from typing import Any

import pytest

from tokgate.emulator import command_line, flags, server_args
from tokgate.emulator.scenario import CONDITIONS

EAGLE3 = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "d"]


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
