"""Which processes of a launch must live."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tokgate.host import proc
from tokgate.server.group import _is_worker

# Forks as `subprocess` does before it executes the tool, and stays there; tells the copy's process id.
FORKING = """
import os, sys, time
copy = os.fork()
if copy:
    print(copy, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("argument", "worker"), [("--multiprocessing-fork", True), ("--other", False)])
def test_copy_of_a_worker_that_starts_a_tool_is_no_worker(argument: str, worker: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", FORKING, argument], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    copy = proc.read(int(process.stdout.readline()))
    original = proc.read(process.pid)
    try:
        assert original is not None and copy is not None
        assert proc.command_line(copy.pid) == proc.command_line(original.pid)
        assert _is_worker(original) is worker
        assert not _is_worker(copy)
    finally:
        if copy is not None:
            proc.send(copy, signal.SIGKILL)
        process.kill()
        process.wait()
        process.stdout.close()
