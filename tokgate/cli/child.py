"""One pytest of a gate as a child: what it is told of its run, and how a signal reaches it once."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokgate.gate.ending import tell_end
from tokgate.gate.interruption import COMMAND
from tokgate.gate.results import RUN_FILE
from tokgate.gate.share import SHARES, Share

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a pytest ended: its status, the folder of its run if it came to one, and whether a signal was to end it."""

    status: int
    run: Path | None
    interrupted: bool = False


class Child:
    """One pytest, run as a child so that a signal to us reaches it and its servers are torn down by it."""

    def __init__(
        self, folder: Path, arguments: Sequence[str], share: Share | None = None, shares: int = 1
    ) -> None:
        self._again = shlex.join(["tokgate", *sys.argv[1:]])
        # In memory: nothing to remove, however we end.
        self._run_file = os.memfd_create("tokgate-run")
        env = {
            # A gate that a worker of xdist starts is none itself; pytest-benchmark would take it for one.
            **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST_")},
            RUN_FILE: f"/proc/self/fd/{self._run_file}",
            SHARES: str(shares),
            COMMAND: self._again,
        }
        if share is not None:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, share.gpus))
        self._prefix = f"[GPU {share.name}] " if share else ""
        self._interrupted = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE if share else None,
            stderr=subprocess.STDOUT if share else None,
            text=True,
            errors="replace",
            pass_fds=[self._run_file],
            # Whoever signals a job without a terminal may signal this process alone, or its whole group: the
            # child, in a group of its own, gets it from us and once. A terminal's Ctrl-C goes to both.
            process_group=None if _at_terminal() else 0,
            preexec_fn=_interrupt_with_parent,
        )

    def interrupt(self, number: int, *, send: bool = True) -> None:
        """Let it end in order, by the signal that came; end it at once when asked again.

        Args:
            send: whether it does not get the signal from where we did.
        """
        if send:
            self._process.send_signal(signal.SIGTERM if self._interrupted else number)
        self._interrupted = True

    def wait(self) -> Ended:
        """Pass its output on until it ends."""
        for line in self._process.stdout or ():
            sys.stdout.write(self._prefix + line)
            sys.stdout.flush()
        status = self._process.wait()
        told = os.pread(self._run_file, 1 << 16, 0).decode()
        os.close(self._run_file)
        run = Path(told) if told else None
        if status < 0 and run is not None:
            # By a second signal, or by the kernel, which ended it before it could say so.
            name = next((known.name for known in signal.Signals if known == -status), f"signal {-status}")
            tell_end(run, f"ended at once by {name}", name, self._again)
        return Ended(status, run, self._interrupted)


def _at_terminal() -> bool:
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def _interrupt_with_parent() -> None:
    """In the child: be interrupted when this tokgate is killed, even where a shell has SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Until the suite's plugin is ready for them: pytest imports for a second or more.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


@contextmanager
def forwarded(children: Sequence[Child]) -> Iterator[None]:
    """Pass signals on to all children meanwhile."""

    # A terminal sends Ctrl-C to the children too; then we only wait for them to clean up.
    at_terminal = _at_terminal()

    def forward(number: int, frame: object) -> None:
        for child in children:
            child.interrupt(number, send=not (at_terminal and number == signal.SIGINT))

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
