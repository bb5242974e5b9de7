"""``tokgate bench`` as people type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.load.peers import HEAD, chunk, event, stream
from tokgate.cli import run
from tokgate.config.workloads import Prompts, Workload
from tokgate.errors import ResultsUnwritable, UsageFault
from tokgate.load.discovery import Discovery, discover, fits
from tokgate.load.routes import resolve
from tokgate.load.sample import Request


def bench(*arguments: object) -> int:
    return run(["bench", "--quiet", *map(str, arguments)])


def test_measures_a_server_and_writes_all_of_it(truth, tmp_path, capsys) -> None:
    path = tmp_path / "out" / "bench.json"
    with truth("--step-us", "2000", "--spec") as url:
        code = bench(
            url,
            "--route",
            "generate",
            "--prompt-tokens",
            3,
            "--concurrency",
            2,
            "--output-tokens",
            24,
            "--json",
            path,
        )
    shown = capsys.readouterr().out
    found = json.loads(path.read_text())
    # 3: measured, but void, which a busy machine brings about.
    assert code == (3 if found["void"] else 0)
    assert all(f"VOID {reason['cause']}" in shown for reason in found["void"])
    assert "accept length" in shown and "closed loop, 2 at once; 8 requests of 24 tokens" in shown
    assert [request["completion_tokens"] for request in found["requests"]] == [24] * 8
    assert found["schema"] == "tokgate-bench/1" and found["workload"]["concurrency"] == 2
    assert set(found["requests"][0]) == set(Request.__slots__)
    assert f"{found['metrics']['decode_tok_s']:.4g}" in shown
    assert path.stat().st_mode & 0o044


def test_where_results_go_is_looked_at_before_anything_is_measured(scripted, tmp_path, capsys) -> None:
    server = scripted(lambda _: [stream(8)])
    (tmp_path / "file").touch()
    asked = (server.url, "--prompt-tokens", 3, "--output-tokens", 8, "--json")
    assert bench(*asked, tmp_path) == 2
    assert "it is a folder" in capsys.readouterr().err
    assert bench(*asked, tmp_path / "file" / "x.json") == 3
    out, err = capsys.readouterr()
    assert "results cannot be written" in err and "closed loop" not in out
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert bench(*asked, tmp_path / "new" / "x.json") in (0, 3)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.json"]


def test_figures_are_shown_though_they_cannot_be_written(scripted, tmp_path, capsys, monkeypatch) -> None:
    def full(path: Path, data: object) -> None:
        raise ResultsUnwritable(f"results cannot be written to {path}: No space left on device")

    monkeypatch.setattr("tokgate.cli.bench.write_json", full)
    server = scripted(lambda _: [stream(8)])
    asked = (server.url, "--prompt-tokens", 3, "--output-tokens", 8, "--json", tmp_path / "x.json")
    assert bench(*asked) == 3
    out, err = capsys.readouterr()
    assert "closed loop" in out and "No space left" in err


def test_an_address_that_ends_in_v1_is_told_to_leave_it_out(scripted, capsys) -> None:
    server = scripted(lambda _: [])
    server.info = b"no such page"
    assert bench(f"{server.url}/v1") == 1
    assert f"tokgate adds /v1 itself: give {server.url}\n" in capsys.readouterr().err
    assert bench(f"{server.url}/v2") == 1
    assert "adds /v1" not in capsys.readouterr().err


def test_a_workload_of_a_file(truth, tmp_path) -> None:
    file = tmp_path / "workloads.yaml"
    file.write_text(
        "workloads:\n  chat-bs2:\n    concurrency: 2\n    requests: 4\n    output_tokens: 6\n"
        "    route: chat\n    prompts: {kind: text}\n"
    )
    with truth("--step-us", "1000") as url:
        code = bench(url, "--workload", f"{file}:chat-bs2", "--json", tmp_path / "j.json")
        wrong = bench(url, "--workload", f"{file}:chat-bs3")
    assert code in (0, 3) and wrong == 2
    found = json.loads((tmp_path / "j.json").read_text())
    assert found["workload"]["name"] == "chat-bs2" and len(found["requests"]) == 4


def test_open_loop(truth, tmp_path) -> None:
    with truth("--step-us", "1000") as url:
        code = bench(
            url,
            "--rate",
            100,
            "--arrival",
            "constant",
            "--requests",
            5,
            "--output-tokens",
            4,
            "--json",
            tmp_path / "j.json",
        )
    found = json.loads((tmp_path / "j.json").read_text())
    assert code in (0, 3)
    assert [r["intended_s"] for r in found["requests"]] == pytest.approx([0, 0.01, 0.02, 0.03, 0.04])
    assert found["workload"]["route"] == "completions"  # found out: no /model_info there


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["https://h:1"], "https is not measured"),
        (["http://user:secret@127.0.0.1:1"], "credentials go into a header"),
        (["http://127.0.0.1:1/?key=secret"], "credentials go into a header"),
        (
            ["{url}", "--prompts", "text", "--prompt-tokens", "9"],
            "--prompt-tokens: for generated prompts only",
        ),
        (
            ["{url}", "--route", "chat", "--shared-prefix", "0.5"],
            "--shared-prefix: for generated prompts only",
        ),
        (["{url}", "--prompts", str(Path(__file__)), "--warmup", "1"], "--warmup: a trace is sent as it is"),
        (["http://127.0.0.1:1", "--route", "grpc"], "expected generate, completions or chat"),
        (["http://127.0.0.1:1", "--header", "nonsense"], "expected 'Name: value'"),
        (["http://127.0.0.1:1", "--header", "A: b\nC: d"], "expected 'Name: value'"),
        (["http://127.0.0.1:1", "--header", "A B: c"], "expected 'Name: value'"),
        (["http://127.0.0.1:1", "--header", "A: \u2192"], "in ASCII"),
        (["http://127.0.0.1:1", "--header", "content-length: 3"], "the client writes this field itself"),
        (
            ["http://127.0.0.1:1", "--first-token-s", "0.09"],
            "deadline first_token_s is 0.09 s; the lowest is 0.1 s",
        ),
        (["http://127.0.0.1:1", "--gap-s", "0.05"], "deadline gap_s is 0.05 s; the lowest is 0.1 s"),
        (["http://127.0.0.1:1", "--request-s", "0"], "deadline request_s is 0 s; the lowest is 0.1 s"),
        (["http://127.0.0.1:1", "--request-s", "nan"], "deadline request_s is nan s; the lowest is 0.1 s"),
        (["http://127.0.0.1:1", "--slo-ttft-s", "-1"], "--slo-ttft-s -1: expected a limit above 0"),
        (["http://127.0.0.1:1", "--slo-tpot-ms", "nan"], "--slo-tpot-ms nan: expected a limit above 0"),
        (
            ["http://127.0.0.1:1", "--workload", "f.yaml:a", "--seed", "2", "--output-tokens", "9"],
            "--output-tokens, --seed: --workload says that already",
        ),
        (["{url}", "--arrival", "constant"], "--arrival constant needs --rate"),
        (["{url}", "--arrival", "trace", "--rate", "3"], "the trace says when"),
        (["{url}", "--prompts", "/dev/null"], "the trace is empty"),
        (["{url}", "--workload", "no-colon"], "expected FILE:NAME"),
        (["{url}", "--concurrency", "4", "--requests", "2"], "fewer than --concurrency"),
        (["{url}", "--rate", "-1"], "above 0"),
        (["{url}", "--rate", "1e9"], "--rate 1e+09: expected requests a second, above 0 and below 1000000"),
        (["{url}", "--rate", "inf"], "--rate inf: expected requests a second, above 0 and below 1000000"),
        (["{url}", "--arrival", "sometimes"], "expected poisson, constant or trace"),
        (["{url}", "--pin-cpus", "a"], "expected CPU numbers"),
        (["{url}", "--pin-cpus", "4096"], "CPU 4096"),
        (["{url}", "--prompts", "/no/trace.jsonl"], "cannot be read"),
    ],
)
def test_usage_faults(truth, capsys, arguments, message) -> None:
    with truth() as url:
        assert bench(*(argument.format(url=url) for argument in arguments)) == 2
    errors = capsys.readouterr().err
    assert message in errors and "Traceback" not in errors and "secret" not in errors


def test_nobody_there(capsys) -> None:
    assert bench("http://127.0.0.1:1") == 1
    assert "no server answers at 127.0.0.1:1: Connection refused" in capsys.readouterr().err


def answers(status: bytes) -> list[object]:
    return [b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n{}"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (answers(b"404 Not Found"), "name its route with --route"),
        (answers(b"401 Unauthorized"), "it wants a key: --header 'Authorization: Bearer KEY'"),
        (answers(b"503 Service Unavailable"), "it is not ready"),
        ([b"\x15\x03\x01\x00\x02\x02\x16", None], "another protocol is spoken there (https, say)"),
    ],
)
def test_a_server_that_does_not_say_what_it_is(scripted, capsys, answer, message) -> None:
    server = scripted(lambda _: [])
    server.questions = answer
    assert bench(server.url) == 1
    errors = capsys.readouterr().err
    where = server.url.removeprefix("http://")
    assert errors.startswith(
        f"tokgate bench: the server at {where} does not say what it is (GET /model_info: "
    )
    assert message in errors and len(errors.splitlines()) == 2


def test_a_trace_is_sent_whole(scripted, tmp_path, capsys) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(f'{{"prompt":"{i}","output_tokens":8}}\n' for i in range(6)))
    server = scripted(lambda _: [stream(8)])
    assert bench(server.url, "--prompts", trace) in (0, 3)
    assert len(server.requests) == 6
    assert "6 requests of a trace" in capsys.readouterr().out
    assert bench(server.url, "--prompts", trace, "--requests", 2) in (0, 3)
    assert len(server.requests) == 8


def test_failures_and_stalls_end_with_one(scripted, capsys) -> None:
    bad = b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops"
    assert bench(scripted(lambda _: [bad]).url, "--prompt-tokens", 3, "--warmup", 0) == 1
    assert "no request was answered" in capsys.readouterr().err
    stuck = scripted(lambda _: [HEAD + chunk(event(1)), ...])
    assert bench(stuck.url, "--prompt-tokens", 3, "--warmup", 0, "--gap-s", 0.3) == 1
    assert "the server stopped answering: stream: nothing for" in capsys.readouterr().err
    good = scripted(lambda _: [stream(8)])
    assert bench(good.url, "--prompt-tokens", 3, "--output-tokens", 8) in (0, 3)
    assert "SGLang, /models/m" in capsys.readouterr().out


def test_an_address_that_is_none_is_a_usage_error(capsys) -> None:
    assert bench("no-such-host.invalid") == 2
    assert "does not resolve" in capsys.readouterr().err


@pytest.mark.parametrize(
    "info",
    [
        {"model_path": "m", "context_length": 4096},
        {"model_path": "m", "context_length": None, "data": [{"id": "m", "max_model_len": 4096}]},
    ],
    ids=["server_info", "models"],
)
def test_more_than_the_servers_context_is_refused_before_anything_is_sent(scripted, capsys, info) -> None:
    server = scripted(lambda _: [HEAD, ...])
    server.info = json.dumps(info).encode()
    assert bench(server.url, "--prompt-tokens", 10_000_000) == 2
    shown = capsys.readouterr().err
    assert (
        "10000000 prompt tokens and 128 output tokens are 10000128; the server's context length is 4096"
        in shown
    )
    assert bench(server.url, "--prompt-tokens", 4000, "--output-tokens", 97) == 2
    assert server.requests == []


def test_all_of_the_context_may_be_used_and_a_server_that_does_not_tell_it_is_asked(scripted) -> None:
    target = resolve(scripted(lambda _: [HEAD, ...]).url)
    plan = Workload("bench", 1, 1, 96, prompts=Prompts(length_tokens=4000))
    fits(plan, Discovery("generate", "m", "s", 4096))
    fits(plan, discover(target, route="generate"))
    with pytest.raises(UsageFault, match="context length is 4095"):
        fits(plan, Discovery("generate", "m", "s", 4095))
