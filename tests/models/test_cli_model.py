"""``tokgate model``: what is printed, and how faults end."""

from __future__ import annotations

import json

import pytest

from tokgate.cli import run


def test_make_then_predict(tmp_path, capsys):
    assert run(["model", "make", "tiny", "--accept-length", "2.5", "--out", str(tmp_path / "pair")]) == 0
    assert "accept length 2.5000 predicted at 3 steps" in capsys.readouterr().out
    folder = str(tmp_path / "pair")
    assert run(["model", "predict", folder, "--prompt-ids", "3,5,7", "--tokens", "64", "--output"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["accept_length"] == pytest.approx(63 / answer["verify_count"])
    assert len(answer["output_ids"]) == 64
    (tmp_path / "ids.json").write_text(json.dumps([3, 5, 7]))
    assert (
        run(["model", "predict", folder, "--prompt-ids", f"@{tmp_path / 'ids.json'}", "--tokens", "64"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["verify_count"] == answer["verify_count"]


def test_verify_says_what_it_did_and_fails_a_changed_file(copied_pair, capsys):
    with (copied_pair / "target" / "tokenizer_config.json").open("a") as file:
        file.write(" ")
    assert run(["model", "verify", str(copied_pair)]) == 1
    out = capsys.readouterr().out
    assert "FAULT  SHA-256" in out
    assert "ok     target" in out
    assert out.strip().endswith("1 faults")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["make", "huge", "--out", "x"], 2, "no preset 'huge'"),
        (["make", "tiny", "--out", "x", "--accept-length", "5"], 2, "cannot be had with 3 draft steps"),
        (["make", "tiny", "--out", "x", "--accept-length", "2", "--agreement", "0.8"], 2, "not several"),
        (["make", "tiny", "--out", "x", "--seed", "-1"], 2, "--seed must not be negative"),
        (["make", "tiny", "--out", "x", "--workers", "0"], 2, "--workers must be at least 1"),
        (["verify", "x"], 3, "make a pair with: tokgate model make"),
        (["predict", "x", "--prompt-ids", "3"], 3, "truth.json: cannot be read"),
    ],
)
def test_faults_are_one_message_without_traceback(tmp_path, monkeypatch, capsys, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    assert run(["model", *arguments]) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["a,b", "@missing.json", "3.5"])
def test_prompt_ids_that_are_none(pair, capsys, text):
    assert run(["model", "predict", str(pair.folder), "--prompt-ids", text]) == 2
    assert "--prompt-ids" in capsys.readouterr().err
