"""``tokgate serve``, as typed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Collection
from pathlib import Path

import psutil
import pytest

from tokgate.host import marker

COMMAND = [sys.executable, "-m", "tokgate", "serve"]


def test_serves_and_stops_on_ctrl_c(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*COMMAND, "--scenario", "steady", "--profile", "eagle3-graphs", "--port", "0"],
            stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.match(r"serving at (http://127\.0\.0\.1:\d+) ", line)
    assert match, (tmp_path / "log").read_text()
    with urllib.request.urlopen(f"{match[1]}/server_info", timeout=20) as reply:
        assert b'"speculative_algorithm":"EAGLE3"' in reply.read()
    children = psutil.Process(process.pid).children(recursive=True)
    # Parent, scheduler, detokenizer, and the reaper that watches over them.
    assert len(children) == 4
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(20) == 0
    process.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive


def owners(server: Collection[int]) -> dict[int, str]:
    return {item.process.pid: item.owner for item in marker.find_all() if item.process.pid in server}


@pytest.mark.parametrize("watched", [True, False])
def test_a_server_whose_serve_is_killed_ends_with_it_and_is_found_by_reap(watched: bool) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--scenario", "steady", "--quiet"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert "serving at http" in process.stdout.readline()
    children = psutil.Process(process.pid).children(recursive=True)
    (reaper,) = (child for child in children if "tokgate.server.reaper" in child.cmdline())
    server = {child.pid: child for child in children if child != reaper}
    assert owners(server) == dict.fromkeys(server, "alive")
    if not watched:
        reaper.kill()
    process.kill()
    process.wait()
    process.stdout.close()
    if not watched:
        # What reap looks for, and what it does to it.
        dead = [item for item in marker.find_all() if item.process.pid in server]
        assert owners(server) == dict.fromkeys(server, "dead")
        assert marker.kill(dead[0].mark)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_quiet_shows_the_url_and_stops_a_stubborn_server(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--scenario", "steady", "--quiet", "--fault", "generation-dead"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert "serving at http" in process.stdout.readline()
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "server_args=" not in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--profile", "nothing"], 2, "no profile 'nothing'"),
        (["--fault", "nothing"], 2, "capture-hang:KIND"),
        (["--scenario", "steady", "--fault", "start-exit:weights"], 1, "ended by itself"),
        (["--bogus-flag"], 2, "unrecognized arguments: --bogus-flag"),
    ],
)
def test_faults_of_use_are_one_message(arguments: list[str], code: int, message: str) -> None:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == code
    assert message in done.stderr
