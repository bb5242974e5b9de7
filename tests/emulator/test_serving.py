"""A healthy server: pacing, batching, tokens, control routes, process tree, orderly end."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import signal
import socket
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tokgate.gate.cycle import traces

EAGLE3 = [
    "--speculative-algorithm", "EAGLE3",
    "--speculative-draft-model-path", "draft",
    "--speculative-num-steps", "3",
    "--speculative-eagle-topk", "1",
    "--speculative-num-draft-tokens", "4",
    "--attention-backend", "triton",
]  # fmt: skip
EXACT = ["--disable-radix-cache", "--enable-metrics"]
Start = Callable[..., Any]


def test_steps_keep_to_the_schedule(shared: Start) -> None:
    for flags, tokens, step_s in (([], 150, 0.004), (EAGLE3, 400, 0.0054)):
        server = shared(*EXACT, *flags)
        drifts = [server.generate((1, 2), tokens, stream=True).drift(step_s) for _ in range(3)]
        assert min(map(abs, drifts)) < 0.01
        # The control: a step that is 5 % longer than it should be is noticed.
        assert server.generate((1, 2), tokens, stream=True).drift(step_s * 0.95) > 0.03


def test_speculation_does_not_change_the_tokens(shared: Start) -> None:
    prompts = [[n, 5, 7] for n in range(4)]
    plain = [shared(*EXACT).generate(p, 50).json["output_ids"] for p in prompts]
    fast = [shared(*EXACT, *EAGLE3).generate(p, 50).json["output_ids"] for p in prompts]
    assert plain == fast
    assert len({tuple(ids) for ids in plain}) == 4
    assert plain[0] == shared(*EXACT).generate(prompts[0], 50).json["output_ids"]


def test_accept_length_over_a_run(shared: Start) -> None:
    server = shared(*EXACT, *EAGLE3)
    assert server.request("POST", "/flush_cache").status == 200
    metas = [server.generate((n, 1), 48).json["meta_info"] for n in range(4)]
    passes = sum(meta["spec_verify_ct"] for meta in metas)
    assert 4 * 47 / passes == pytest.approx(2.7, rel=0.015)


def test_requests_run_together_up_to_the_limit(emulate: Start) -> None:
    server = emulate("--max-running-requests", "4", "--disable-radix-cache").wait_ready()
    # All eight in one body: sent one by one, the first could be through before the last has come.
    body = {"input_ids": [[n, 2, 3] for n in range(8)], "sampling_params": {"max_new_tokens": 40}}
    reply = server.request("POST", "/generate", {**body, "stream": True}, stream=True)
    assert reply.complete
    assert max(int(n) for n in _numbers(server.log, "Decode batch, #running-req: ")) == 4
    assert max(int(n) for n in _numbers(server.log, "#queue-req: ")) > 0
    # The order of events, not their times: no more than four at once, the others when one of these has finished.
    running: set[int] = set()
    most = []
    for event in reply.events:
        running.add(event["index"])
        most.append(len(running))
        if event["meta_info"]["finish_reason"]:
            running.remove(event["index"])
    assert max(most) == 4 and not running
    assert {event["index"] for event in reply.events} == set(range(8))


def _numbers(text: str, before: str) -> list[str]:
    return [part.split(",")[0].split()[0] for part in text.split(before)[1:]]


def test_a_batch_larger_than_captured_runs_without_graphs(emulate: Start) -> None:
    server = emulate("--cuda-graph-max-bs-decode", "2", *EXACT, "--decode-log-interval", "5").wait_ready()
    body = {"input_ids": [[n, 2] for n in range(3)], "sampling_params": {"max_new_tokens": 30}}
    server.request("POST", "/generate", body)
    server.generate((1, 2), 30)
    assert "Decode batch, #running-req: 3" in server.log
    for line in server.log.splitlines():
        if "Decode batch" in line:
            assert ("cuda graph: False" in line) == ("#running-req: 3" in line)
    assert 'mode="decode_none"' in server.get("/metrics").body.decode()


def test_batched_input(shared: Start) -> None:
    server = shared(*EXACT)
    body = {"input_ids": [[1, 2], [3, 4, 5]], "sampling_params": {"max_new_tokens": 6, "temperature": 0}}
    both = server.request("POST", "/generate", body).json
    assert [one["meta_info"]["prompt_tokens"] for one in both] == [2, 3]
    assert both[0]["output_ids"] == server.generate((1, 2), 6).json["output_ids"]
    streamed = server.request("POST", "/generate", {**body, "stream": True}, stream=True)
    assert {event["index"] for event in streamed.events} == {0, 1}
    last = {event["index"]: event for event in streamed.events}
    assert [last[i]["output_ids"] for i in (0, 1)] == [one["output_ids"] for one in both]


def test_text_prompts_and_keep_alive(shared: Start) -> None:
    server = shared(*EXACT)
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    body = json.dumps({"text": "The capital of France is", "sampling_params": {"max_new_tokens": 3}}).encode()
    request = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    seen = b""
    sock.sendall(request[:40])
    sock.sendall(request[40:] + b"GET /model_info HTTP/1.1\r\nhost: x\r\n\r\n")
    while seen.count(b"HTTP/1.1 200 OK") < 2:
        seen += sock.recv(65536)
    sock.close()
    assert b"model_path" in seen


def test_logprobs(shared: Start) -> None:
    server = shared(*EXACT)
    options = {"return_logprob": True, "top_logprobs_num": 3, "logprob_start_len": 0}
    meta = server.generate((7, 8, 9), 5, **options).json["meta_info"]
    ids = server.generate((7, 8, 9), 5).json["output_ids"]
    assert [entry[1] for entry in meta["output_token_logprobs"]] == ids
    for (value, token, _), ranked in zip(
        meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True
    ):
        assert ranked[0][:2] == [value, token]
        assert [entry[0] for entry in ranked] == sorted((entry[0] for entry in ranked), reverse=True)
    assert [entry[1] for entry in meta["input_token_logprobs"]] == [7, 8, 9]
    assert meta["input_token_logprobs"][0][0] is None
    fast = shared(*EXACT, *EAGLE3).generate((7, 8, 9), 5, **options).json["meta_info"]
    assert fast["output_token_logprobs"] == meta["output_token_logprobs"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"input_ids": []}', 400),
        (b'{"input_ids": ["a"]}', 400),
        (b'{"text": 3}', 400),
        (b'{"input_ids": [1], "sampling_params": {"max_new_tokens": 0}}', 400),
        (b'{"input_ids": [1], "sampling_params": {"max_new_tokens": "x"}}', 400),
        (json.dumps({"input_ids": [1] * 5000}).encode(), 400),
    ],
)
def test_bad_requests_are_refused(shared: Start, body: bytes, status: int) -> None:
    import http.client

    server = shared(*EXACT)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", "/generate", body)
    reply = connection.getresponse()
    reply.read()
    connection.close()
    assert reply.status == status
    assert server.get("/health").status == 200


def test_flush_is_refused_while_busy(shared: Start) -> None:
    server = shared(*EXACT)
    seen = len(server.log)
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(server.generate, (1, 2), 500)
        deadline = time.monotonic() + 20
        while "Prefill batch" not in server.log[seen:]:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert server.request("POST", "/flush_cache").status == 400
        assert busy.result().status == 200
    assert server.request("POST", "/flush_cache").status == 200
    assert "Cache flushed successfully!" in server.log


def test_cached_tokens_until_flushed(emulate: Start) -> None:
    server = emulate().wait_ready()
    prompt = list(range(40))

    def cached() -> int:
        return int(server.generate(prompt, 2).json["meta_info"]["cached_tokens"])

    assert [cached(), cached()] == [0, 39]
    server.request("POST", "/flush_cache")
    assert cached() == 0


def test_graph_passes_are_counted(shared: Start) -> None:
    for flags in ([], EAGLE3):
        server = shared(*EXACT, *flags)

        def passes(server: Any = server) -> float:
            lines = server.get("/metrics").body.decode().splitlines()
            return sum(float(line.split()[-1]) for line in lines if 'mode="decode_cuda_graph"' in line)

        before = passes()
        reply = server.generate((3, 4), 41, stream=True)
        assert passes() - before == len(reply.events) - 1


@pytest.mark.parametrize(
    ("flags", "launches", "kernels"),
    [
        ([], 1, {"emulated_decode_forward"}),
        (EAGLE3, 3, {f"emulated_{part}_forward" for part in ("target_verify", "draft", "draft_extend")}),
        (["--cuda-graph-backend-decode", "disabled"], 0, {"emulated_decode_forward"}),
    ],
)  # fmt: skip
def test_profile(shared: Start, tmp_path: Path, flags: list[str], launches: int, kernels: set[str]) -> None:
    server = shared(*EXACT, *flags)
    wanted = {"output_dir": str(tmp_path), "num_steps": 11, "activities": ["CPU", "GPU"]}
    assert server.request("POST", "/start_profile", wanted).status == 200
    assert server.request("POST", "/start_profile", wanted).status == 400
    server.generate((1, 2, 3), 60)
    (path,) = tmp_path.glob("*-TP-0.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    # One of the eleven passes is the prefill.
    assert sum(event["name"] == "cudaGraphLaunch" for event in events) == 10 * launches
    assert kernels <= {event["name"] for event in events}
    for name in ("Profiling starts. Traces will be saved to", "Stop profiling...", "Profiling done."):
        assert name in server.log
    steps = [event["ts"] for event in events if event["name"] == "scheduler.run_batch"]
    assert statistics.median(b - a for a, b in itertools.pairwise(steps)) > 3500


def test_the_requests_of_a_trace_come_together(shared: Start, tmp_path: Path) -> None:
    """One by one, from a busy host, each would bring its own prefill into the few passes that are recorded."""
    server = shared(*EXACT, *EAGLE3)
    seen = len(server.log)
    asked = traces.Request([[n, 2, 3] for n in range(8)], 8, 4, version="0.5.15.post1", kind="emulated")
    found = traces.capture(f"http://127.0.0.1:{server.port}", tmp_path / "trace", asked, timeout_s=20)
    log = server.log[seen:]
    assert sum(int(n) for n in _numbers(log, "Prefill batch, #new-seq: ")) == 8
    assert log.count('"POST /generate HTTP/1.1" 200 OK') == 1
    assert len(found.files) == 1


def test_a_client_that_leaves_frees_its_place(shared: Start) -> None:
    server = shared(*EXACT)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        body = json.dumps({"input_ids": [1], "stream": True, "sampling_params": {"max_new_tokens": 3000}})
        sock.sendall(f"POST /generate HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        assert sock.recv(100)
    server.wait_for("Request is disconnected from the client side")
    assert server.request("POST", "/flush_cache").status == 200


def test_process_tree_and_size(shared: Start) -> None:
    server = shared(*EXACT)
    tree = server.tree()
    assert set(tree) == {"sglang::scheduler", "sglang::detokenizer"}
    process = psutil.Process(server.pid)
    assert "tokgate.emulator" in " ".join(process.cmdline())
    rss = sum(psutil.Process(pid).memory_info().rss for pid in (server.pid, *tree.values()))
    assert rss < 60 * 2**20


def test_ranks_have_processes_of_their_own(emulate: Start) -> None:
    server = emulate("--tp-size", "3").wait_ready()
    tree = server.tree()
    assert set(tree) == {*(f"sglang::scheduler_TP{rank}" for rank in range(3)), "sglang::detokenizer"}
    assert server.generate((1, 2), 20).json["meta_info"]["completion_tokens"] == 20
    os.kill(tree["sglang::scheduler_TP2"], signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        server.generate((1, 2), 20, timeout_s=1)
    # The abort of the request that was given up and a new request reach the scheduler together.
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(server.generate, (1, 2), 20)
        time.sleep(0.2)
        os.kill(tree["sglang::scheduler_TP2"], signal.SIGCONT)
        assert later.result().status == 200


def test_sigterm_drains_and_leaves_nothing(emulate: Start) -> None:
    server = emulate().wait_ready()
    tree = server.tree()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.generate, (1, 2), 100)
        server.wait_for("Prefill batch, #new-seq: 1, #new-token: 2")
        server.process.terminate()
        assert running.result().json["meta_info"]["completion_tokens"] == 100
    assert server.wait_exit() == -signal.SIGKILL
    assert "SIGTERM received. signum=None frame=None. Draining requests and shutting down..." in server.log
    assert not any(psutil.pid_exists(pid) for pid in tree.values())


def test_children_die_with_a_killed_parent(emulate: Start) -> None:
    server = emulate().wait_ready()
    tree = server.tree()
    server.process.kill()
    server.wait_exit()
    deadline = time.monotonic() + 5
    while any(psutil.pid_exists(pid) for pid in tree.values()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_taken_port_is_said_as_uvicorn_says_it(emulate: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = emulate("--port", str(taken.getsockname()[1]))
        server.wait_exit()
    assert "[Errno 98] error while attempting to bind on address" in server.log


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["--fault", "capture-hangs:draft-extend"], "did you mean 'capture-hang'?"),
        (["--emulated-version", "five"], "not an SGLang version"),
        (["--scenario", "fouding"], "did you mean 'founding'?"),
        (["--scenario-override", "baseline.step_ms=x"], "baseline.step_ms"),
        (["--speculative-algorithm", "MAGIC"], "no speculative algorithm 'MAGIC'"),
    ],
)
def test_bad_usage_exits_2_without_a_traceback(emulate: Start, flags: list[str], message: str) -> None:
    server = emulate(*flags)
    assert server.wait_exit() == 2
    assert message in server.log
    assert "Traceback" not in server.log


def test_five_servers_side_by_side_keep_pace(emulate: Start) -> None:
    servers = [emulate("--disable-radix-cache", scenario="founding") for _ in range(5)]
    for server in servers:
        server.wait_ready()
    with ThreadPoolExecutor(5) as pool:
        replies = list(pool.map(lambda server: server.generate((1, 2), 90, stream=True), servers))
    # The median over servers, since this machine may be busy with something else. The scenario has a noise
    # of 0.4 %, only to the slow side.
    assert -0.01 < statistics.median(reply.drift(0.0121) for reply in replies) < 0.025
