"""Process titles, parent-death signals and forking, as SGLang's children have them."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29
COMM_BYTES = 15


def set_title(title: str) -> None:
    """Show this process as ``title`` (argv[0] and the name in ``ps``). Linux only, like SGLang on CUDA.

    The kernel reads a process's command line from its own memory, so it is overwritten there; a title
    longer than the original command line is cut.
    """
    stat = Path("/proc/self/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split()
    start, end = int(fields[45]), int(fields[46])
    room = end - start
    text = title.encode()[: room - 1].ljust(room, b"\0")
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(text)
    Path("/proc/self/comm").write_text(title[:COMM_BYTES])


def prctl(option: int, value: int) -> None:
    """``prctl(2)`` with one argument; failure is ignored, since nothing depends on it for correctness."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def fork(title: str, body: Callable[[], int], *, stubborn: bool = False) -> int:
    """Fork a child that dies with its parent, runs ``body`` and exits with its result.

    Args:
        title: shown in ``ps``.
        body: its result is the exit code.
        stubborn: the child ignores SIGTERM.

    Returns:
        The child's process id, in the parent.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        set_title(title)
        # The parent's handlers mean nothing here; Ctrl-C reaches the parent, which ends its children.
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else signal.SIG_DFL)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = body()
    except KeyboardInterrupt:
        code = 130
    except BaseException:  # noqa: BLE001 - whatever it is, a forked child must not run on as its parent
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)
    raise AssertionError("unreachable")
