"""``tokgate parity replay`` and the case file."""

from __future__ import annotations

import json

import pytest

from tokgate.analysis.parity_case import Case, CaseRequest, load_case, save_case
from tokgate.cli import run
from tokgate.errors import UsageFault

PROMPTS = ([100, 0], [200, 0], [300, 4])


@pytest.fixture
def case(tmp_path):
    path = tmp_path / "case.json"
    save_case(Case(requests=[CaseRequest(prompt_ids=list(p), new_tokens=16) for p in PROMPTS]), path)
    return path


def greedy(prompt, tokens):
    return [(sum(prompt) + i) % 1000 for i in range(tokens)]


def replay(case, first, second):
    return run(["parity", "replay", str(case), "--url", first, "--url", second + "/"])


def test_equal_servers_pass(case, serve, capsys):
    assert replay(case, serve(), serve()) == 0
    out = capsys.readouterr().out
    assert out.startswith("PASS 3 of 3 outputs equal, 48 tokens compared")
    assert "control: the reference against itself: 3 of 3 outputs equal" in out
    assert "(96 gaps)" in out, "3 requests x 16 tokens, re-scored and asked alone"


def test_a_wrong_token_fails_with_its_place(case, serve, capsys):
    def wrong(prompt, tokens):
        ids = greedy(prompt, tokens)
        if prompt[0] == 200:
            ids[4] = 7
        return ids

    assert replay(case, serve(), serve(wrong)) == 1
    out = capsys.readouterr().out
    assert out.startswith("DIVERGED 2 of 3 outputs equal")
    assert "request 1: diverged at output token 4: id 7 for id 204, reference's top-2 gap 3.9 nats" in out


def test_swapped_requests_are_named(case, serve, capsys):
    swap = {100: [200, 0], 200: [100, 0]}
    assert replay(case, serve(), serve(lambda p, n: greedy(swap.get(p[0], p), n))) == 1
    assert "request 0: swapped at output token 0: id 200 for id 100" in capsys.readouterr().out


def test_the_known_truth_is_checked_too(case, serve, capsys):
    body = load_case(case)
    save_case(
        body.model_copy(update={"wanted_ids": [[1] * 16, greedy([200, 0], 16), greedy([300, 4], 16)]}), case
    )
    assert replay(case, serve(), serve()) == 1
    out = capsys.readouterr().out
    assert "request 0: the reference itself leaves the known output at token 0" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a parity case"),
        ('{"requests": []}', "requests"),
        ('{"requests": [{"prompt_ids": [], "new_tokens": 4}]}', "prompt_ids"),
        ('{"requests": [{"prompt_ids": [1], "new_tokens": 4}], "extra": 1}', "extra"),
        ('{"requests": [{"prompt_ids": [1], "new_tokens": 4}], "wanted_ids": []}', "0 wanted outputs for 1"),
    ],
)
def test_a_file_that_is_no_case(tmp_path, text, message):
    path = tmp_path / "case.json"
    path.write_text(text)
    with pytest.raises(UsageFault) as fault:
        load_case(path)
    assert message in str(fault.value)


def test_a_case_survives_the_disk(case):
    assert json.loads(case.read_text())["kind"] == "tokgate parity case"
    assert [r.prompt_ids for r in load_case(case).requests] == [list(p) for p in PROMPTS]
    assert [p.name for p in case.parent.iterdir()] == ["case.json"]


def test_faults_are_messages(case, serve, capsys):
    good = serve()
    assert replay(case, "http://127.0.0.1:9", good) == 3
    assert "http://127.0.0.1:9/flush_cache: no answer" in capsys.readouterr().err
    assert replay(case, good, serve(broken=b"<html>")) == 3
    assert "the answer is not JSON" in capsys.readouterr().err
    assert replay(case, good, serve(broken=b'{"error": {}}')) == 3
    assert "holds no output_ids" in capsys.readouterr().err
    assert run(["parity", "replay", str(case), "--url", good]) == 2
    assert "must be given twice" in capsys.readouterr().err
