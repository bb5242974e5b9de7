"""How a scheduler ends or stops when a fault says so."""

from __future__ import annotations

import os
import resource
import signal

from tokgate.emulator.faults import Faults
from tokgate.emulator.log_lines import Log


class Fate:
    """The deaths planted in one scheduler.

    Args:
        faults: of the server.
        log: of the scheduler.
    """

    def __init__(self, faults: Faults, log: Log) -> None:
        self._log = log
        self._stop = faults.number("scheduler-stop")
        self._abort = faults.number("abort")

    def after(self, tokens: int) -> None:
        """What happens once that many tokens went to clients; a stop comes once, it can be continued."""
        if self._stop is not None and tokens >= self._stop:
            self._stop = None
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._abort is not None and tokens >= self._abort:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            self._log.raw(
                "terminate called after throwing an instance of 'c10::Error'\n"
                "  what():  CUDA error: unspecified launch failure (planted fault)\n"
            )
            os.abort()
