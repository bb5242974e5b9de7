"""Kinds of load, end to end: replayed traces, goodput, steady state, ramp, warm-up, what the server reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.load.peers import HEAD, QUICK, chunk, event, stream, workload
from tests.load.test_client import causes, run
from tokgate.cli import run as cli
from tokgate.config.workloads import Arrival, Prompts
from tokgate.load.client import Slo, measure
from tokgate.load.prompts import build, shipped_texts


def test_a_trace_is_replayed_at_its_times_with_its_lengths(truth, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"prompt": "a first question", "at_s": 0.0, "output_tokens": 5},
        {"prompt": "another, é", "at_s": 0.15, "output_tokens": 9},
        {"prompt": "at the same time", "at_s": 0.15},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    plan = workload(requests=3, prompts=Prompts(kind="trace", path=str(path)), arrival=Arrival("trace"))
    with truth("--step-us", "1000") as url:
        found = run(url, plan)
    assert [r.intended_s for r in found.requests] == pytest.approx([0.0, 0.15, 0.15])
    assert [r.completion_tokens for r in sorted(found.requests, key=lambda r: r.index)] == [5, 9, 8]
    assert all(r.sent_s >= r.intended_s and r.outcome == "ok" for r in found.requests)
    assert not causes(found)


def test_a_trace_of_token_ids_by_the_command_line(truth, tmp_path: Path) -> None:
    path, result = tmp_path / "trace.jsonl", tmp_path / "bench.json"
    rows = [{"input_ids": [16, 17, 18], "at_s": 0.02 * i, "output_tokens": 4 + i} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--route", "generate", "--prompts", str(path), "--arrival", "trace", "--requests", "3"]
    with truth("--step-us", "1000") as url:
        assert cli(["bench", url, "--quiet", *arguments, "--json", str(result)]) in (0, 3)
    requests = json.loads(result.read_text())["requests"]
    assert [r["completion_tokens"] for r in requests] == [4, 5, 6]
    assert [r["intended_s"] for r in requests] == pytest.approx([0, 0.02, 0.04])


def test_the_shipped_texts_are_sent_as_they_are(scripted) -> None:
    server = scripted(lambda _: [stream(8)])
    plan = workload(requests=3, prompts=Prompts(kind="text"))
    run(server.url, plan)
    sent = [json.loads(request.partition(b"\r\n\r\n")[2])["text"] for request in server.requests]
    assert sorted(sent) == sorted(shipped_texts()[:3])


def test_goodput_counts_requests_within_every_limit(truth, tmp_path: Path) -> None:
    plan = workload(requests=4, concurrency=2, output_tokens=6)
    with truth("--step-us", "1000", "--first-us", "100000") as url:
        shares = [
            measure(url, plan, build(plan), deadlines=QUICK, slo=slo).metrics["goodput_share"]
            for slo in (Slo(ttft_s=30, tpot_ms=30_000), Slo(ttft_s=0.1, tpot_ms=30_000))
        ]
        path = tmp_path / "bench.json"
        arguments = ["--concurrency", "2", "--output-tokens", "6", "--slo-ttft-s", "30", "--json", str(path)]
        assert cli(["bench", url, "--quiet", *arguments]) in (0, 3)
    assert shares == [1.0, 0.0]
    metrics = json.loads(path.read_text())["metrics"]
    assert metrics["goodput_request_per_s"] == pytest.approx(metrics["request_per_s"])


def test_steady_state_and_peak_of_a_real_run(truth) -> None:
    plan = workload(requests=8, concurrency=2, output_tokens=40)
    with truth("--step-us", "2000", "--first-us", "50000") as url:
        found = run(url, plan).metrics
    assert found["peak_tok_s"] >= found["output_tok_s"]
    # Prefill is 50 ms of each request's 130: the steady window has both, as the whole run has.
    assert found["output_tok_s_steady"] == pytest.approx(found["output_tok_s"], rel=0.5)


def test_what_the_server_reports_is_taken_over(scripted) -> None:
    def answer(number: int) -> list[object]:
        last = event(8, {"type": "length"}, queue_time=0.25 * (number + 1), cached_tokens=2)
        return [HEAD + chunk(event(1)) + chunk(last) + b"0\r\n\r\n"]

    found = run(scripted(answer).url, workload(requests=2))
    assert [r.queue_s for r in found.requests] == [0.25, 0.5]
    assert found.metrics["queue_s_p50"] == pytest.approx(0.375)
    assert found.metrics["cached_share"] == pytest.approx(2 / 3)


def test_acceptance_by_position(truth) -> None:
    with truth("--step-us", "1000", "--spec") as url:
        found = run(url, workload(requests=2, output_tokens=60)).metrics
    shares = [found[f"accept_share_pos{position}"] for position in (1, 2, 3)]
    assert 1 > shares[0] > shares[1] > shares[2] > 0
    assert 1 + sum(shares) == pytest.approx(found["accept_length"], rel=0.05)


def test_a_ramp_spreads_the_first_requests(truth) -> None:
    plan = workload(requests=8, concurrency=4, output_tokens=4)
    with truth("--step-us", "1000") as url:
        found = measure(url, plan, build(plan), deadlines=QUICK, ramp_s=0.4)
    first = sorted(r.sent_s for r in found.requests if r.index < 4)
    assert all(sent >= 0.1 * i for i, sent in enumerate(first))


def test_warm_up_requests_are_sent_before_and_not_counted(scripted, tmp_path: Path) -> None:
    server, path = scripted(lambda _: [stream(8)]), tmp_path / "bench.json"
    arguments = ["--prompt-tokens", "3", "--output-tokens", "8", "--requests", "4", "--warmup", "3"]
    assert cli(["bench", server.url, "--quiet", *arguments, "--json", str(path)]) in (0, 3)
    assert len(server.requests) == 7 and len(json.loads(path.read_text())["requests"]) == 4
