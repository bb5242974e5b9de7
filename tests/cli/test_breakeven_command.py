"""``tokgate breakeven`` as printed."""

from __future__ import annotations

import json

import pytest

from tokgate.cli import run

FOUNDING = ["breakeven", "--baseline-tok-s", "82", "--cycle-ms", "30", "--accept-length", "2.0"]


def test_three_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(FOUNDING) == 0
    assert capsys.readouterr().out == (
        "NET_LOSS 66.7 tok/s predicted vs 82 without speculation, 0.81x (-18.7 %)\n"
        "  break-even accept length 2.46 = cycle 30 ms x 82 tok/s; accept length 2\n"
        "  predicted 66.7 tok/s = 2 tokens / 30 ms\n"
        "  to win: accept length above 2.46 (+0.46) at a cycle of 30.0 ms, "
        "or a cycle below 24.4 ms (-5.6 ms) at an accept length of 2\n"
        "  nearer lever: not judged, the greatest accept length is not known (--draft-steps)\n"
    )


def test_with_a_measured_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FOUNDING, "--measured-tok-s", "60.5"]) == 0
    out = capsys.readouterr().out
    assert "3.1 ms a cycle (9 %) lie outside the profiled cycle" in out
    assert "or the true accept length is 1.8" in out
    assert "accept length above 2.71" in out


def test_a_gain_names_no_lever(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FOUNDING[:-1], "3.0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("NET_GAIN 100.0 tok/s predicted vs 82 without speculation, 1.22x (+22.0 %)")
    assert "to win" not in out


def test_json_and_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FOUNDING, "--draft-steps", "3", "--draft-ms", "0.3", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["nearer"] == "accept length"
    assert record["best_steps"] == 6
    assert len(record["curve"]) == 8


def test_bad_figures_are_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FOUNDING[:-1], "0.5"]) == 2
    assert capsys.readouterr().err == (
        "tokgate breakeven: accept length 0.5: a verify pass gives one token at least\n"
    )
    assert run([*FOUNDING, "--draft-ms", "3"]) == 2
    assert run([*FOUNDING, "--draft-steps", "3", "--draft-ms", "30"]) == 2


MODEL = [*FOUNDING[:-1], "2.2", "--draft-steps", "3", "--draft-ms", "0.3"]


def test_trees_are_held_against_the_chain_where_a_token_has_a_price(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(MODEL) == 0
    assert "topk above 1: not modelled" in capsys.readouterr().out
    assert run([*MODEL, "--verify-per-token-ms", "0.5", "--acceptance", "0.7,0.5,0.3"]) == 0
    out = capsys.readouterr().out
    assert "verify cost by its tokens" in out
    assert "topk 2 with 8 tokens is faster above 2.30" in out
    assert "topk 8 with 32 tokens is faster above 3.16" in out
    assert "measure a profile with topk above 1" in out


def test_of_a_tree_the_steps_are_modelled(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*MODEL, "--topk", "4", "--verify-per-token-ms", "0.5", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["topk"], record["trees"]) == (4, [])
    # Its tokens are a setting of their own: a step more costs a draft pass and nothing in verify.
    assert record["curve"][3]["cycle_ms"] - record["curve"][2]["cycle_ms"] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--acceptance", "a,b"], "--acceptance takes chances like"),
        (["--acceptance", "1.5"], "chances between 0 and 1"),
        (["--topk", "0"], "--topk is 1 at least"),
        (["--verify-per-token-ms", "20"], "leave nothing of a verify pass"),
    ],
)
def test_figures_of_the_model_that_cannot_be(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*MODEL, *more]) == 2
    assert said in capsys.readouterr().err


def test_a_model_without_a_draft_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FOUNDING, "--acceptance", "0.5"]) == 2
    assert "give --draft-ms too" in capsys.readouterr().err


CHAIN = ["--cycle-ms", "33", "--draft-steps", "3", "--draft-ms", "0.3"]
FOUND = ["breakeven", "--baseline-tok-s", "82.5", *CHAIN]


@pytest.mark.parametrize(
    ("accept_length", "acceptance", "means"),
    [
        ("2", "0.9,0.9,0.9", "3.44"),
        ("2", "0.9", "3.44"),
        ("3.44", "0.54,0.54,0.57", "2.00"),
        ("2", "1,1,1", "4.00"),
        ("2", "0,0,0", "1.00"),
    ],
)
def test_acceptance_that_means_another_accept_length_is_refused(
    accept_length: str, acceptance: str, means: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--json"]):
        assert run([*FOUND, "--accept-length", accept_length, "--acceptance", acceptance, *more]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith(
            f"tokgate breakeven: --acceptance {acceptance} means an accept length of {means} at 3 draft steps; "
            f"--accept-length says {accept_length}\n"
        )


@pytest.mark.parametrize(
    ("accept_length", "acceptance"),
    [
        ("3.44", "0.9,0.9,0.9"),
        ("3.4", "0.9"),
        ("2", "0.54,0.54,0.57"),
        ("1.9", "0.5,0.5,0.5"),  # as of 0.52, 0.52, 0.52
        ("2.04", "0.54,0.54,0.57"),  # tokens cut off the last pass
        ("4", "1,1,1"),
        ("1", "0,0,0"),
        ("2.2", "0.7,0.5,0.3,0.9"),  # of a position that three steps do not have
    ],
)
def test_acceptance_that_agrees_within_rounding_is_taken(
    accept_length: str, acceptance: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*FOUND, "--accept-length", accept_length, "--acceptance", acceptance]) == 0
    assert "measured" in capsys.readouterr().out
