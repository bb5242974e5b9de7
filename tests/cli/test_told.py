"""A signal to ``tokgate`` ends it wherever it is met."""

from __future__ import annotations

import subprocess
import sys

import pytest

CALLBACK = """
import os, signal, sys, time, weakref
import tokgate.cli
from tokgate.__main__ import main

class Freed:
    pass

def run(arguments):
    freed = Freed()
    watched = weakref.ref(freed, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    del freed
    time.sleep(20)
    return 0

tokgate.cli.run = run
sys.argv = ["tokgate", "gate"]
main()
"""
OTHER = """
import sys, weakref
import tokgate.cli
from tokgate.__main__ import main

class Freed:
    def __del__(self):
        raise ValueError("of somebody else")

tokgate.cli.run = lambda arguments: Freed() and 0
main()
"""


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [(CALLBACK, 130, "tokgate gate: ended by SIGTERM\n"), (OTHER, 0, "ValueError: of somebody else\n")],
    ids=["a signal", "another exception"],
)
def test_a_signal_met_where_nothing_can_be_raised_is_told_again(code: str, status: int, said: str) -> None:
    """In a weakref callback, of which each import has one."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.endswith(said)) == (status, True), done.stderr
    assert ("Traceback" in done.stderr) == (status == 0)


LATE = """
import os, signal, sys
import tokgate.cli
from tokgate.__main__ import main

class Last:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, 15)

def run(arguments):
    return 1

def at_exit():
    os.kill(os.getpid(), signal.SIGTERM)

tokgate.cli.run = run
WHEN
main()
"""


@pytest.mark.parametrize(
    "when",
    [
        "import atexit; atexit.register(at_exit)",
        "import threading; threading.Thread(target=lambda: (threading.main_thread().join(), at_exit())).start()",
        "last = Last()",
    ],
    ids=["at exit", "while threads end", "while modules go"],
)
def test_a_signal_after_the_code_is_decided_does_not_change_it(when: str) -> None:
    """A verdict had failed: 1, and neither 143 nor 130."""
    done = subprocess.run(
        [sys.executable, "-c", LATE.replace("WHEN", when)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
