"""Every fault is seen, and does not happen to a server without it (the controls are in test_serving)."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

EAGLE3 = [
    "--speculative-algorithm", "EAGLE3",
    "--speculative-draft-model-path", "draft",
    "--speculative-num-steps", "3",
    "--speculative-eagle-topk", "1",
    "--speculative-num-draft-tokens", "4",
    "--attention-backend", "triton",
]  # fmt: skip
QUICK_HEALTH = ["--scenario-override", "http.health_timeout_s=1"]
Start = Callable[..., Any]


def state_of(pid: int) -> str:
    return str(psutil.Process(pid).status())


@pytest.mark.parametrize(
    ("kind", "flags", "line"),
    [
        ("target-decode", [], "Capture target decode CUDA graph"),
        ("target-verify", EAGLE3, "Capture target verify CUDA graph"),
        ("draft-decode", EAGLE3, "Capture draft decode CUDA graph"),
        ("draft-extend", EAGLE3, "Capture draft extend CUDA graph"),
    ],
)
def test_capture_hang(emulate: Start, kind: str, flags: list[str], line: str) -> None:
    server = emulate(*flags, "--fault", f"capture-hang:{kind}")
    server.wait_for(f"{line} begin")
    bar = re.compile(re.escape(f"{line} begin") + r"[^\r]*\rCapturing batches ")
    server.wait_until(lambda: bar.search(server.log) is not None)
    time.sleep(0.3)
    assert f"{line} end" not in server.log
    assert server.process.poll() is None
    assert re.search(r"\rCapturing batches .*$", server.log)


def test_capture_hang_of_one_rank_holds_all(emulate: Start) -> None:
    server = emulate("--tp-size", "2", *EAGLE3, "--fault", "capture-hang:target-verify@TP1")
    server.wait_for("TP1] Capture target verify CUDA graph begin")
    time.sleep(0.3)
    assert "CUDA graph end" not in server.log


@pytest.mark.parametrize("phase", ["spawn", "imports", "weights", "kv-cache", "capture", "warmup"])
def test_start_exit(emulate: Start, phase: str) -> None:
    server = emulate("--fault", f"start-exit:{phase}")
    assert server.wait_exit() != 0
    assert f"planted fault: start-exit:{phase}" in server.log
    assert "fired up" not in server.log
    if phase not in ("spawn", "warmup"):
        assert "Scheduler hit an exception: Traceback" in server.log


def test_crash_at_the_first_replay(emulate: Start) -> None:
    server = emulate(*EAGLE3, "--fault", "crash-first-replay")
    assert server.wait_exit() == -signal.SIGKILL
    assert "Capture draft extend CUDA graph end" in server.log
    assert "Scheduler hit an exception" in server.log
    assert "illegal memory access" in server.log
    assert "fired up" not in server.log


def test_abort_that_the_parent_misses(emulate: Start) -> None:
    server = emulate("--fault", "abort:5", *QUICK_HEALTH).wait_ready()
    with pytest.raises(TimeoutError):
        server.generate((1, 2), 40, timeout_s=1)
    server.wait_for("terminate called after throwing an instance of 'c10::Error'")
    server.wait_until(lambda: "sglang::scheduler" not in server.tree())
    assert server.process.poll() is None
    assert server.get("/health").status == 503


def test_a_killed_scheduler_is_noticed(emulate: Start) -> None:
    server = emulate().wait_ready()
    pid = server.tree()["sglang::scheduler"]
    os.kill(pid, signal.SIGKILL)
    assert server.wait_exit() == -signal.SIGKILL
    assert f"Subprocess scheduler_0 (pid={pid}) crashed with exit code -9" in server.log


def test_scheduler_stop(emulate: Start) -> None:
    server = emulate("--fault", "scheduler-stop:5", *QUICK_HEALTH, "--enable-metrics").wait_ready()
    assert server.get("/health").status == 200
    with pytest.raises(TimeoutError):
        server.generate((1, 2), 40, timeout_s=1)
    pid = server.tree()["sglang::scheduler"]
    server.wait_until(lambda: state_of(pid) == psutil.STATUS_STOPPED)
    assert server.get("/health").status == 503
    assert "Health check failed. Server couldn't get a response from detokenizer" in server.log
    assert server.get("/metrics").status == 200
    with pytest.raises(TimeoutError):
        server.get("/server_info", timeout_s=0.5)
    os.kill(pid, signal.SIGCONT)
    assert server.generate((1, 2), 40).json["meta_info"]["completion_tokens"] == 40


def test_detokenizer_exit(emulate: Start) -> None:
    server = emulate("--fault", "detokenizer-exit:5", *QUICK_HEALTH).wait_ready()
    with pytest.raises(TimeoutError):
        server.generate((1, 2), 40, timeout_s=1)
    server.wait_until(lambda: set(server.tree()) == {"sglang::scheduler"})
    assert server.get("/health").status == 503


def test_generation_dead(emulate: Start) -> None:
    server = emulate("--fault", "generation-dead").wait_ready()
    with pytest.raises(TimeoutError):
        server.generate((1, 2), 4, timeout_s=0.7)
    assert server.get("/health").status == 200


def test_stall(emulate: Start) -> None:
    server = emulate("--fault", "stall:10").wait_ready()
    reply = server.generate((1, 2), 40, stream=True, timeout_s=1.2)
    assert not reply.complete
    assert reply.events[-1]["meta_info"]["completion_tokens"] == 10
    assert server.get("/health").status == 200


def test_teardown_hang(emulate: Start) -> None:
    server = emulate("--fault", "teardown-hang").wait_ready()
    for pid in (server.pid, *server.tree().values()):
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.4)
    assert server.process.poll() is None
    assert server.get("/health").status == 200


@pytest.mark.parametrize("what", ["port", "file"])
def test_survivor(emulate: Start, tmp_path: Path, what: str) -> None:
    server = emulate("--fault", f"survivor:{what}").wait_ready()
    ours = {server.pid, *server.tree().values()}
    server.process.kill()
    server.wait_exit()
    survivors = [
        p for p in psutil.process_iter(["cmdline", "pid"]) if p.pid not in ours and _holds(p, server, what)
    ]
    try:
        (survivor,) = survivors
        assert os.getsid(survivor.pid) != os.getsid(0)
    finally:
        for process in survivors:
            process.kill()


def _holds(process: psutil.Process, server: Any, what: str) -> bool:
    try:
        if what == "port":
            return any(c.laddr.port == server.port for c in process.net_connections() if c.laddr)
        target = str(Path(f"/proc/{process.pid}/fd/2").readlink())
        return target == str(server._log) and process.cmdline()[:1] == ["sglang::scheduler"]
    except (psutil.Error, OSError):
        return False


def test_wrong_and_repeated_token(emulate: Start) -> None:
    right = emulate().wait_ready().generate((1, 2), 20).json["output_ids"]
    wrong = emulate("--fault", "wrong-token:6").wait_ready().generate((1, 2), 20).json["output_ids"]
    assert wrong[:6] == right[:6]
    assert wrong[6] != right[6]
    twice = emulate(*EAGLE3, "--fault", "repeat-token:6").wait_ready().generate((1, 2), 20).json["output_ids"]
    assert twice == [*right[:6], right[5], *right[6:19]]


def test_truncate(emulate: Start) -> None:
    meta = emulate("--fault", "truncate:10").wait_ready().generate((1, 2), 20).json["meta_info"]
    assert meta["completion_tokens"] == 10
    assert meta["finish_reason"] == {"type": "length", "length": 10}


def test_swap_requests(emulate: Start) -> None:
    good, bad = emulate(), emulate("--fault", "swap-requests")
    outputs = []
    for server in (good.wait_ready(), bad.wait_ready()):
        body = {"input_ids": [[1, 2], [3, 4]], "sampling_params": {"max_new_tokens": 10, "temperature": 0}}
        outputs.append([one["output_ids"] for one in server.request("POST", "/generate", body).json])
        alone = server.generate((1, 2), 10).json["output_ids"]
        assert alone == outputs[0][0]
    assert outputs[1][0][0] == outputs[0][0][0]
    assert outputs[1][0][1:] == outputs[0][1][1:]
    assert outputs[1][1][1:] == outputs[0][0][1:]


def test_accept_one(emulate: Start) -> None:
    meta = emulate(*EAGLE3, "--fault", "accept-one").wait_ready().generate((1, 2), 20).json["meta_info"]
    assert meta["spec_verify_ct"] == 19
    assert meta["spec_accept_rate"] == 0


def test_not_replayed(emulate: Start) -> None:
    server = emulate(*EAGLE3, "--enable-metrics", "--fault", "not-replayed").wait_ready()
    server.generate((1, 2), 150)
    metrics = server.get("/metrics").body.decode()
    assert 'mode="decode_cuda_graph"' not in metrics
    assert 'mode="decode_none"' in metrics
    assert "Capture target verify CUDA graph end" in server.log
    assert "cuda graph: True" not in server.log


def test_slow(emulate: Start) -> None:
    slow, normal = emulate("--fault", "slow:2"), emulate()
    drifts = []
    for server in (slow.wait_ready(), normal.wait_ready()):
        replies = [server.generate((1, 2), 90, stream=True) for _ in range(2)]
        drifts.append(min(reply.drift(0.004) for reply in replies))
    assert drifts[0] > 0.9
    assert drifts[1] < 0.1


def test_odd_rank(emulate: Start) -> None:
    server = emulate("--tp-size", "2", "--fault", "odd-rank:TP1").wait_ready()
    used = dict(re.findall(r"TP(\d)\] Capture target decode CUDA graph end.*mem usage=([\d.]+)", server.log))
    assert float(used["1"]) > 2 * float(used["0"])


def test_late_rank(emulate: Start) -> None:
    """The others stand in their capture until it comes: what the log says took long is not what was slow."""
    server = emulate("--tp-size", "2", "--fault", "late-rank:TP1").wait_ready()
    took = dict(re.findall(r"TP(\d)\] Capture target decode CUDA graph end. elapsed=([\d.]+)", server.log))
    assert float(took["0"]) > 2 and float(took["0"]) > float(took["1"]) + 1


def test_missing_metrics(emulate: Start) -> None:
    server = emulate(*EAGLE3, "--enable-metrics", "--fault", "missing-metrics").wait_ready()
    text = server.get("/metrics").body.decode()
    assert "sglang:num_running_reqs" in text
    assert "cuda_graph_passes_total" not in text
    assert "spec_" not in text


def test_http_500_every_third(emulate: Start) -> None:
    server = emulate("--fault", "http-500:3").wait_ready()
    assert [server.generate((1, 2), 2).status for _ in range(6)] == [200, 200, 500, 200, 200, 500]


def test_early_close(emulate: Start) -> None:
    server = emulate("--fault", "early-close:10").wait_ready()
    reply = server.generate((1, 2), 40, stream=True)
    assert not reply.complete
    assert reply.events[-1]["meta_info"]["completion_tokens"] == 10
    assert server.request("POST", "/flush_cache").status == 200


def test_faults_from_the_environment(emulate: Start) -> None:
    server = emulate(env={"TOKGATE_EMULATOR_FAULT": "truncate:4 slow:1.5"}).wait_ready()
    assert server.generate((1, 2), 20).json["meta_info"]["completion_tokens"] == 4


def test_drain_without_limit(emulate: Start) -> None:
    server = emulate("--fault", "stall:4").wait_ready()
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(server.generate, (1, 2), 40, timeout_s=3)
        server.wait_for("Prefill batch, #new-seq: 1, #new-token: 2")
        server.process.terminate()
        server.wait_for("Draining requests")
        time.sleep(0.5)
        assert server.process.poll() is None
        with pytest.raises(TimeoutError):
            stuck.result()
    # The client has gone: nothing holds the server any more.
    server.wait_exit()
