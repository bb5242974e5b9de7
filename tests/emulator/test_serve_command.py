"""``tokgate serve``, as typed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

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
    assert len(children) == 3
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(20) == 0
    process.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=5)
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
