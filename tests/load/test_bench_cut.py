"""``tokgate bench`` on runs that do not come to their end: nothing that was measured is lost, all of it is void."""

from __future__ import annotations

import collections
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.load.peers import HEAD, ROOT, chunk, event, stream
from tests.load.test_client import log_of, wait_for, workers_of
from tokgate.cli import run
from tokgate.cli.bench_run import Heed
from tokgate.errors import ResultsUnwritable

ASKED = ("--route", "generate", "--prompt-tokens", 3, "--output-tokens", 8, "--warmup", 0)


def bench(*arguments: object) -> int:
    return run(["bench", "--quiet", *map(str, arguments)])


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def outcomes(found: dict[str, Any]) -> dict[str, int]:
    return dict(collections.Counter(request["outcome"] for request in found["requests"]))


@contextmanager
def emulated(*options: str) -> Iterator[str]:
    """The address of an emulated server."""
    command = [sys.executable, "-m", "tokgate", "serve", "--scenario", "steady", "--quiet", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[2]
        finally:
            process.terminate()


@contextmanager
def started(url: str, path: Path, *options: object) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "tokgate", "bench", url, "--quiet", "--json", path, *options]
    process = subprocess.Popen(
        [*map(str, command)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(path.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job may have SIGINT ignored, and one under nohup SIGHUP.
        preexec_fn=lambda: [signal.signal(n, signal.SIG_DFL) for n in (signal.SIGINT, signal.SIGHUP)],
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


STALLED = """\
tokgate bench: the server stopped answering: stream: nothing for S s (limit 0.4 s)
2 of 4 requests were answered, 1 stalled, 1 unsent
kept, as void: FILE
"""


def test_a_server_that_hangs_in_mid_stream(scripted, tmp_path, capsys) -> None:
    path = tmp_path / "b.json"
    hung = [HEAD + chunk(event(1)) + chunk(event(2)), ...]
    server = scripted(lambda number: hung if number == 2 else [stream(8)])
    assert bench(server.url, *ASKED, "--gap-s", 0.4, "--json", path) == 1
    out, err = capsys.readouterr()
    assert re.sub(r"for [\d.]+ s", "for S s", err).replace(str(path), "FILE") == STALLED
    found = read(path)
    assert found["ended"]["how"] == "stalled" and found["ended"]["during"] == "measurement"
    assert f"tokgate bench: {found['ended']['why']}\n" in err
    assert outcomes(found) == {"ok": 2, "stalled": 1, "unsent": 1}
    # What the stalled one had brought is there too.
    assert [(r["steps"], r["completion_tokens"]) for r in found["requests"] if r["outcome"] == "stalled"] == [
        (2, 2)
    ]
    assert found["metrics"]["output_tok_s"] > 0 and "output, whole run" in out
    reason = found["void"][0]
    assert (reason["cause"], reason["bound"], reason["unit"]) == ("stalled", 0.4, "s")
    assert reason["measured"] > 0.4 and f"VOID stalled: {reason['message']}" in out


def test_the_control_comes_to_its_end(scripted, tmp_path, capsys) -> None:
    path = tmp_path / "b.json"
    server = scripted(lambda _: [stream(8)])
    assert bench(server.url, *ASKED, "--gap-s", 10, "--json", path) in (0, 3)
    found = read(path)
    assert found["ended"] == {"how": "complete", "during": "measurement", "why": ""}
    assert outcomes(found) == {"ok": 4} and not capsys.readouterr().err


def test_an_emulated_server_that_hangs(tmp_path, capsys) -> None:
    """Its streams fall silent after 16 tokens: already in the warm-up."""
    path = tmp_path / "b.json"
    asked = ("--output-tokens", 40, "--gap-s", 1, "--json", path)
    with emulated("--fault", "stall:16") as url:
        assert bench(url, *asked) == 1
        out, err = capsys.readouterr()
        found = read(path)
        assert found["ended"]["during"] == "warm-up" and found["workload"]["requests"] == 1
        assert outcomes(found) == {"stalled": 1} and "warm-up, closed loop, 1 at once; 1 request of 40" in out
        assert "the server stopped answering" in err and "0 of 1 requests were answered, 1 stalled" in err
    with emulated() as url:
        assert bench(url, *asked) in (0, 3)
        assert read(path)["ended"]["how"] == "complete" and outcomes(read(path)) == {"ok": 4}


@pytest.mark.parametrize(
    ("number", "how", "struck"),
    [(signal.SIGSTOP, "stalled", {"stalled"}), (signal.SIGKILL, "server_lost", {"early_close", "refused"})],
)
def test_the_truth_server_is_stopped_or_killed_in_mid_stream(
    truth_binary, tmp_path, capsys, number, how, struck
) -> None:
    path = tmp_path / "b.json"
    asked = ("--concurrency", 2, "--requests", 60, "--output-tokens", 20, "--warmup", 0)
    # Of a server that is stopped alone: one that is killed is noticed without.
    limits = ("--gap-s", 1, "--first-token-s", 1) if number == signal.SIGSTOP else ()
    command = [truth_binary, "--step-us", "20000"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().split()[1]}"

        highest: collections.Counter[int] = collections.Counter()

        def in_mid_stream() -> bool:
            for request, sent in log_of(url).items():
                highest[request] = max(tokens for tokens, _, _ in sent)
            return any(request > 1 and 3 < tokens < 10 for request, tokens in highest.items())

        def strike() -> None:
            wait_for(in_mid_stream, 60)
            server.send_signal(number)

        thread = threading.Thread(target=strike)
        thread.start()
        code = bench(url, "--route", "generate", "--prompt-tokens", 3, *asked, *limits, "--json", path)
        thread.join()
        server.kill()
    found = read(path)
    assert code == 1 and found["ended"]["how"] == how and found["void"] and len(found["requests"]) == 60
    assert outcomes(found)["ok"] >= 1 and struck & outcomes(found).keys()
    shown = capsys.readouterr()
    assert "output, whole run" in shown.out and "Traceback" not in shown.err
    assert found["ended"]["why"] in shown.err and f"kept, as void: {path}" in shown.err
    assert found["void"][0]["cause"] == how


LOST = """\
tokgate bench: the server went away: it takes no connections any more
0 of 4 requests were answered, 1 early_close, 3 refused
kept, as void: FILE
"""


def test_a_server_that_dies_at_once(scripted, tmp_path, capsys) -> None:
    """No request was answered, and how long it took is told all the same."""
    path = tmp_path / "b.json"
    server = scripted(
        lambda _: [HEAD + chunk(event(1)), 0.3, chunk(event(2)), 0.1, lambda: server.close(), None]
    )
    assert bench(server.url, *ASKED, "--json", path) == 1
    out, err = capsys.readouterr()
    assert err.replace(str(path), "FILE") == LOST
    found = read(path)
    assert found["ended"]["how"] == "server_lost" and outcomes(found) == {"early_close": 1, "refused": 3}
    assert found["duration_s"] > 0.3 and found["window_s"] > 0.3 and "; 0.00 s" not in out


def test_a_server_that_fails_and_lives_is_not_lost(scripted, tmp_path, capsys) -> None:
    path = tmp_path / "b.json"
    server = scripted(lambda number: [stream(8)] if number < 2 else [HEAD + chunk(event(1)), None])
    assert bench(server.url, *ASKED, "--json", path) == 1
    assert read(path)["ended"]["how"] == "complete" and outcomes(read(path)) == {"ok": 2, "early_close": 2}
    assert "kept" not in capsys.readouterr().err


INTERRUPTED = """\
tokgate bench: ended by SIGNAL
1 of 8 requests were answered, 2 interrupted, 5 unsent
kept, as void: FILE
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_measurement_that_is_told_to_stop_keeps_what_it_has(scripted, tmp_path, number) -> None:
    parts = [HEAD + chunk(event(1)) + chunk(event(2)), ...]
    server = scripted(lambda i: parts if i else [stream(8)])
    path = tmp_path / "b.json"
    name = signal.Signals(number).name
    with started(server.url, path, *ASKED, "--concurrency", 2, "--requests", 8) as process:
        wait_for(lambda: server.was_read(2), 60)
        assert list(tmp_path.iterdir()), "the control: there is something to leave"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert err.replace(str(path), "FILE").replace(name, "SIGNAL") == INTERRUPTED
    assert process.returncode == 130 and f"VOID interrupted: ended by {name}" in out
    assert list(tmp_path.iterdir()) == [path]
    found = read(path)
    assert found["ended"] == {"how": "interrupted", "during": "measurement", "why": f"ended by {name}"}
    assert outcomes(found) == {"ok": 1, "interrupted": 2, "unsent": 5}
    assert (
        found["window_s"] > found["duration_s"] > 0 and f"; {found['window_s']:.2f} s until it ended" in out
    )
    cut = [r for r in found["requests"] if r["outcome"] == "interrupted"]
    assert [(r["steps"], r["completion_tokens"]) for r in cut] == [(2, 2)] * 2
    assert found["void"][0]["cause"] == "interrupted" and found["void"][0]["measured"] == 7


def test_before_anything_is_measured_a_signal_ends_it_as_ever(tmp_path) -> None:
    """The server's name is asked for, and it does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        path = tmp_path / "b.json"
        with started(f"127.0.0.1:{listener.getsockname()[1]}", path) as process:
            listener.settimeout(60)
            peer, _ = listener.accept()
            with peer:
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("", "tokgate bench: ended by SIGINT\n", 130)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_remembered_from_the_first_question_on(number) -> None:
    came: list[int] = []
    before = signal.signal(number, lambda number, _: came.append(number))
    try:
        with Heed() as heed:
            signal.raise_signal(number)
            assert came == [number] and heed() == ""
            signal.raise_signal(number)
            assert came == [number] and heed() == f"ended by {signal.Signals(number).name}"
            assert signal.getsignal(number) is signal.SIG_DFL  # a second one ends at once
        signal.raise_signal(number)
        assert came == [number] * 2
    finally:
        signal.signal(number, before)


def test_a_client_that_dies_is_said_and_its_file_written(scripted, tmp_path, capsys) -> None:
    server = scripted(lambda _: [HEAD, ...])

    def kill() -> None:
        wait_for(lambda: server.requests)
        os.kill(workers_of(os.getpid())[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    path = tmp_path / "b.json"
    assert bench(server.url, *ASKED, "--json", path) == 1
    thread.join()
    err = capsys.readouterr().err
    assert (
        "measuring client: worker 0 died (killed by signal 9)\nof 4 of 4 requests nothing is known\n" in err
    )
    found = read(path)
    assert found["ended"]["how"] == "client_lost" and found["requests"] == [] and found["metrics"] == {}
    assert found["void"][0]["cause"] == "client_lost" and found["void"][0]["measured"] == 4


def test_a_cut_run_whose_file_cannot_be_written_says_both(scripted, tmp_path, capsys, monkeypatch) -> None:
    def full(path: Path, data: object) -> None:
        raise ResultsUnwritable(f"results cannot be written to {path}: No space left on device")

    monkeypatch.setattr("tokgate.cli.bench.write_json", full)
    # What hangs has given a token: the limit is then one of gaps, of which the good answer has none.
    server = scripted(lambda number: [HEAD + chunk(event(1)), ...] if number else [stream(8)])
    assert bench(server.url, *ASKED, "--gap-s", 0.3, "--json", tmp_path / "b.json") == 1
    out, err = capsys.readouterr()
    assert "the server stopped answering" in err and "No space left" in err and "kept" not in err
    assert "output, whole run" in out


def test_a_reader_of_the_figures_that_goes_away_costs_nothing(scripted, tmp_path) -> None:
    server = scripted(lambda _: [stream(8)])
    path = tmp_path / "b.json"
    with started(server.url, path, *ASKED) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(timeout=60)
    assert process.returncode in (0, 3) and not err
    assert read(path)["ended"]["how"] == "complete"
