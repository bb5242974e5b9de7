"""The client against a C server that knows the truth, and against servers that misbehave."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from pathlib import Path

import pytest

from tests.load.peers import HEAD, QUICK, chunk, event, stream, workload
from tokgate.config.workloads import Arrival, Prompts
from tokgate.errors import LoadFault, UsageFault
from tokgate.load.client import Deadlines, Stall, measure
from tokgate.load.measurement import Measurement
from tokgate.load.prompts import build


def run(url, plan, **options) -> Measurement:
    measured = measure(url, plan, build(plan), **{"deadlines": QUICK, **options})
    assert os.environ.get("TOKGATE_READER") in (None, measured.audit.reader)
    return measured


def causes(measured: Measurement) -> set[str]:
    """Void reasons other than those that a busy machine gives by itself."""
    noise = {
        "client_lag",
        "client_cpu",
        "merged_reads",
        "client_run_delay",
        "send_lag",
        "idle_between_requests",
        "clock_step",
    }
    return {reason.cause for reason in measured.void} - noise


def log_of(url: str) -> dict[int, list[tuple[int, int, int]]]:
    """The truth server's log: request -> (tokens, sent_ns, arrived_ns) per event."""
    found = defaultdict(list)
    for line in urllib.request.urlopen(f"{url}/log", timeout=10).read().splitlines():
        request, _, tokens, sent, arrived, _ = map(int, line.split())
        found[request].append((tokens, sent, arrived))
    return found


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("options", [(), ("--spec",), ("--incremental",), ("--spec", "--incremental")])
@pytest.mark.parametrize("route", ["generate", "completions"])
def test_counts_and_times_are_the_servers(truth, route, options) -> None:
    plan = workload(requests=4, concurrency=2, output_tokens=30, route=route)
    with truth("--step-us", "3000", *options) as url:
        measured = run(url, plan)
        log = log_of(url)
    assert not causes(measured)
    assert [r.completion_tokens for r in measured.requests] == [30] * 4
    assert sorted(r.steps for r in measured.requests) == sorted(map(len, log.values()))
    assert all(r.first_tokens == 1 and r.outcome == "ok" for r in measured.requests)
    steps = sum(len(events) - 1 for events in log.values())
    assert measured.metrics["tokens_per_step"] == pytest.approx(4 * 29 / steps)
    if route == "generate" and "--spec" in options:
        metrics = measured.metrics
        assert metrics["accept_length"] == pytest.approx(4 * 29 / steps)
        assert metrics["cycle_ms"] == pytest.approx(metrics["tpot_ms"] * metrics["accept_length"])
    else:
        assert "accept_length" not in measured.metrics and "cycle_ms" not in measured.metrics
    if measured.audit.merged_read_share:  # a busy machine: said, and not compared
        return
    gaps_ms = [(b[1] - a[1]) / 1e6 for events in log.values() for a, b in itertools.pairwise(events)]
    assert measured.metrics["step_ms_p50"] == pytest.approx(statistics.median(gaps_ms), rel=0.1)


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("options", [(), ("--spec",), ("--spec", "--incremental")])
def test_output_ids_are_kept_on_request(truth, options) -> None:
    expected = tuple((i * 7919) % 31991 for i in range(1, 41))
    with truth("--step-us", "1000", *options) as url:
        plan = workload(requests=3, output_tokens=40)
        kept = run(url, plan, keep_output_ids=True)
        without = run(url, plan)
    assert [r.output_ids for r in kept.requests] == [expected] * 3
    assert [r.output_ids for r in without.requests] == [None] * 3


def test_chat_sends_texts_and_refuses_ids(truth) -> None:
    with truth("--step-us", "1000") as url:
        good = run(url, workload(route="chat", prompts=Prompts(kind="text")))
        with pytest.raises(UsageFault, match="chat route takes texts"):
            run(url, workload(route="chat"))
    assert good.requests[0].outcome == "ok" and good.requests[0].completion_tokens == 8


def test_two_workers_are_merged_on_one_clock(truth) -> None:
    plan = workload(requests=8, concurrency=4, output_tokens=20)
    with truth("--step-us", "2000") as url:
        measured = run(url, plan, workers=2)
    assert [r.outcome for r in measured.requests] == ["ok"] * 8
    assert sorted(r.index for r in measured.requests) == list(range(8))
    assert 0 <= min(r.sent_s for r in measured.requests) < max(r.last_token_s for r in measured.requests) < 10
    assert measured.timeline.added.sum() == 160


@pytest.mark.parametrize("process", ["constant", "poisson"])
def test_open_loop_counts_from_the_intended_time(truth, process) -> None:
    plan = workload(requests=10, output_tokens=4, arrival=Arrival(process, rate_per_s=50))
    with truth("--step-us", "1000", "--first-us", "30000") as url:
        measured = run(url, plan)
    intended = [r.intended_s for r in measured.requests]
    if process == "constant":
        assert intended == pytest.approx([i / 50 for i in range(10)])
    assert all(r.sent_s >= r.intended_s for r in measured.requests)
    # 30 ms to the first token at 20 ms between arrivals: they overlap, as a closed loop of 1 would not.
    assert any(
        a.last_token_s > b.sent_s for a, b in zip(measured.requests, measured.requests[1:], strict=False)
    )
    late = max(r.first_token_s - r.intended_s for r in measured.requests)
    assert measured.metrics["ttft_s_p99"] <= late
    assert measured.metrics["ttft_s_p50"] > 0.03


FAULTS = {
    "4xx": (
        [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 9\r\n\r\nno tokens"],
        "http_4xx",
        "400: no tokens",
    ),
    "5xx": ([b"HTTP/1.1 503 Unavailable\r\nContent-Length: 4\r\n\r\nbusy"], "http_5xx", "503: busy"),
    "5xx without a body": ([b"HTTP/1.1 500 Oops\r\nConnection: close\r\n\r\n", None], "http_5xx", "500"),
    "error in the stream": (
        [HEAD + chunk(event(1)) + chunk(b'data: {"error":{"message":"out of memory"}}\n\n') + b"0\r\n\r\n"],
        "stream_error",
        "out of memory",
    ),
    "abort": (
        [HEAD + chunk(event(1)) + chunk(event(2, {"type": "abort", "message": "gone"})) + b"0\r\n\r\n"],
        "stream_error",
        "abort",
    ),
    "early close": ([HEAD + chunk(event(1)) + chunk(event(2))[:50], None], "early_close", "closed"),
    "close before the head": ([b"HTTP/1.1 20", None], "early_close", "closed"),
    "ends without a final event": ([HEAD + chunk(event(1)) + b"0\r\n\r\n"], "early_close", "final event"),
    "not HTTP": ([b"SSH-2.0-OpenSSH_9.2\r\n", None], "malformed", "status line"),
    "not an event stream": (
        [b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\nhello"],
        "malformed",
        "hello",
    ),
    "bad chunk size": ([HEAD + b"zz\r\n"], "malformed", "chunk size"),
    "not JSON": ([HEAD + chunk(b"data: {oops\n\n") + b"0\r\n\r\n"], "malformed", "not JSON"),
    "counter goes back": (
        [HEAD + b"".join(chunk(event(n)) for n in (1, 2, 3, 2)) + b"0\r\n\r\n"],
        "malformed",
        "went back",
    ),
    "short": ([stream(5)], "short", "5 tokens of 8"),
}


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_counted_and_the_run_is_void(scripted, name) -> None:
    parts, outcome, detail = FAULTS[name]
    server = scripted(lambda number: [stream(8)] if number % 2 else parts)
    measured = run(server.url, workload(requests=4))
    assert [r.outcome for r in measured.requests] == [outcome, "ok", outcome, "ok"]
    assert detail in measured.requests[0].detail
    assert causes(measured) == {"short_output" if outcome == "short" else "failed_requests"}


@pytest.mark.usefixtures("reader")
def test_a_control_without_fault_is_not_void(scripted) -> None:
    server = scripted(lambda number: [stream(8)])
    measured = run(server.url, workload(requests=4))
    assert [r.outcome for r in measured.requests] == ["ok"] * 4
    assert not causes(measured)
    assert server.connections == 1


def test_the_clients_memory_is_its_own(scripted) -> None:
    """Not that of the process that measures, which starts the worker."""
    ballast = b"x" * (200 << 20)
    measured = run(scripted(lambda number: [stream(8)]).url, workload(requests=2))
    assert len(ballast) >> 20 == 200 and measured.audit.client_peak_mib is not None
    assert 5 < measured.audit.client_peak_mib < 100


def test_nobody_listens(scripted) -> None:
    server = scripted(lambda number: [])
    server.close()
    measured = run(server.url, workload(requests=3))
    assert [r.outcome for r in measured.requests] == ["refused"] * 3
    assert measured.metrics == {} and "failed_requests" in causes(measured)


@pytest.mark.usefixtures("reader")
def test_a_stale_connection_is_replaced(scripted) -> None:
    # The server closes each connection after its response, as it does with an idle one.
    server = scripted(lambda number: [stream(8), None])
    measured = run(server.url, workload(requests=5))
    assert [r.outcome for r in measured.requests] == ["ok"] * 5
    assert server.connections >= 5


@pytest.mark.parametrize(
    ("parts", "phase"),
    [
        ([...], "first token"),
        ([HEAD, ...], "first token"),
        ([HEAD + chunk(event(1)) + chunk(event(2)), ...], "stream"),
        ([HEAD, *(part for n in range(1, 200) for part in (chunk(event(n)), 0.05))], "request"),
    ],
)
def test_a_silent_server_is_a_stall_with_its_phase(scripted, parts, phase) -> None:
    server = scripted(lambda number: parts if number == 1 else [stream(8)])
    limits = Deadlines(first_token_s=1.0, gap_s=0.7, request_s=2.0)
    began = time.monotonic()
    with pytest.raises(Stall) as caught:
        run(server.url, workload(requests=4), deadlines=limits)
    assert time.monotonic() - began < 20
    assert caught.value.phase == phase
    assert caught.value.waited_s > caught.value.limit_s
    assert caught.value.limit_s == {"first token": 1.0, "stream": 0.7, "request": 2.0}[phase]
    requests = caught.value.measurement.requests
    assert sorted(r.outcome for r in requests) == ["ok", "stalled", "unsent", "unsent"]
    assert "1 of 4 requests were answered" in str(caught.value)


@pytest.mark.usefixtures("reader")
def test_events_that_come_are_seen_to_come(scripted) -> None:
    """A stream that lasts longer than the limit of a gap, and has none: its gaps are a hundredth of it."""
    parts = [HEAD, *(part for n in range(1, 100) for part in (chunk(event(n)), 0.02))]
    parts += [chunk(event(100, {"type": "length"})), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n"]
    load = workload(output_tokens=100)
    measured = run(scripted(lambda _: parts).url, load, deadlines=Deadlines(gap_s=1.5))
    assert [(r.outcome, r.completion_tokens) for r in measured.requests] == [("ok", 100)]
    assert measured.duration_s > 1.5


def test_drain_ends_what_never_ends(scripted) -> None:
    parts = [HEAD, *(part for n in range(1, 200) for part in (chunk(event(n)), 0.05))]
    server = scripted(lambda number: parts)
    with pytest.raises(Stall) as caught:
        run(server.url, workload(), deadlines=Deadlines(drain_s=1.0))
    assert caught.value.phase == "drain"


def workers_of(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            if (
                int(fields[1]) == parent
                and b"tokgate.load.worker import" in (path.parent / "cmdline").read_bytes()
            ):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_for(condition, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "message"), [(signal.SIGKILL, "died"), (signal.SIGSTOP, "no sign of life")]
)
def test_a_dead_or_stopped_worker_does_not_hold_the_client(scripted, number, message) -> None:
    server = scripted(lambda _: [HEAD, ...])

    def hurt() -> None:
        wait_for(lambda: server.requests)
        os.kill(workers_of(os.getpid())[0], number)

    thread = threading.Thread(target=hurt)
    thread.start()
    with pytest.raises(LoadFault, match=message):
        run(server.url, workload(), deadlines=Deadlines(worker_s=2.0))
    thread.join()
    assert not workers_of(os.getpid())


def held_up() -> tuple[list[object], list[float]]:
    """A steady stream of 100 events, for the middle half of which (half a second, or longer on a busy machine) the
    worker that reads it is stopped; and when the server sent each of them.

    The server stops it: whoever waits beside it may come when the stream is over.
    """
    sent: list[float] = []

    def signalled(number: signal.Signals) -> None:
        (worker,) = workers_of(os.getpid())
        os.kill(worker, number)

    def now() -> None:
        sent.append(time.monotonic())

    events = [part for n in range(1, 100) for part in (now, chunk(event(n)), now, 0.01)]
    events[4 * 20 : 4 * 20] = [lambda: signalled(signal.SIGSTOP)]
    events[4 * 70 + 1 : 4 * 70 + 1] = [lambda: signalled(signal.SIGCONT)]
    end = [chunk(event(100, {"type": "length"})), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n"]
    return [HEAD, *events, now, *end, now], sent


def test_a_client_that_was_held_up_says_so(scripted) -> None:
    """The worker is stopped for half a second in the middle of a steady stream, then goes on."""
    parts, _ = held_up()
    measured = run(scripted(lambda _: parts).url, workload(output_tokens=100))
    (request,) = measured.requests
    assert (request.outcome, request.completion_tokens, request.steps) == ("ok", 100, 100)
    found = {reason.cause for reason in measured.void}
    assert {"client_lag", "merged_reads"} & found


SCRIPT = """
import sys
from tokgate.config.workloads import Prompts, Workload
from tokgate.load.client import Deadlines, measure
from tokgate.load.prompts import build
plan = Workload("test", 1, 1, 8, prompts=Prompts(length_tokens=3))
measure(sys.argv[1], plan, build(plan), deadlines=Deadlines())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_when_the_client_goes(scripted, number) -> None:
    server = scripted(lambda _: [HEAD, ...])
    with subprocess.Popen([sys.executable, "-c", SCRIPT, server.url], stderr=subprocess.PIPE) as client:
        wait_for(lambda: server.requests)
        (worker,) = workers_of(client.pid)
        client.send_signal(number)
        _, errors = client.communicate(timeout=20)
    assert client.returncode != 0
    assert number != signal.SIGINT or b"KeyboardInterrupt" in errors
    wait_for(lambda: not Path(f"/proc/{worker}").exists())
