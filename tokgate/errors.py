"""Every exception that tokgate raises on purpose.

::

    TokgateError                    exit code
    +-- UsageFault                      2     the user's input: options, files, names
    |   +-- ConfigFault                       a YAML file with one or more faults, each with file:line
    |   +-- SampleFault                       a stored Samples file that cannot be judged
    |   +-- Misconfigured                     a profile that cannot mean what it asks (verdict MISCONFIGURED)
    +-- HostFault                       3     the machine, not the build (verdict UNFIT)
    |   +-- PortTaken
    |   +-- InterpreterMissing
    |   +-- ModelMissing
    |   +-- ResultsUnwritable                 disk full, read-only folder
    |   +-- GpuBusy                           foreign processes or leftovers on the GPU
    |   +-- HostLocked                        another gate holds this GPU
    +-- EngineFault                     1     the server under test; it lives, and answers wrongly (NOT_SERVING)
    |   +-- Hang                              no progress within a phase's deadline (verdict HANG)
    |   +-- Exited                            the engine died (verdict EXITED)
    +-- LoadFault                       1     a run that gave no usable Sample (NOT_SERVING)
        +-- NotAnswering                3     a server of the user's, given by its address: nothing was compared

``headline`` is one line that suffices alone; ``details`` are the lines that follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class TokgateError(Exception):
    """Root of the tree.

    Args:
        headline: one line: what, where, got, expected.
        details: lines that follow it: evidence, likely cause, next command.
    """

    exit_code = 2

    def __init__(self, headline: str, details: Sequence[str] = ()) -> None:
        super().__init__(headline)
        self.headline = headline
        self.details = tuple(details)

    def __str__(self) -> str:
        return "\n".join((self.headline, *self.details))


class UsageFault(TokgateError):
    """The user's input cannot be used as given."""


class ConfigFault(UsageFault):
    """One or more faults in a configuration file; ``details`` lists each with file:line and key."""


class SampleFault(UsageFault):
    """A stored Samples file is not readable as one, or holds nothing that can be judged."""


class Misconfigured(UsageFault):
    """A profile that the engine would accept but that cannot mean what it asks for."""

    exit_code = 1


class HostFault(TokgateError):
    """The machine, not the build, stands in the way."""

    exit_code = 3


class PortTaken(HostFault):
    """Another process listens on the wanted port."""


class InterpreterMissing(HostFault):
    """The engine's Python does not exist or cannot run its launcher."""


class ModelMissing(HostFault):
    """A model path does not exist or lacks a file that the engine needs."""


class ResultsUnwritable(HostFault):
    """Results cannot be written: disk full, folder read-only."""


class GpuBusy(HostFault):
    """The GPU holds foreign processes or the leftovers of a dead one."""


class HostLocked(HostFault):
    """Another tokgate holds the lock of this GPU, or of what is to be gone on with."""


class EngineFault(TokgateError):
    """The server under test failed.

    Args:
        headline: as in :class:`TokgateError`.
        details: as in :class:`TokgateError`.
        profile: name of the profile whose server failed.
        phase: the start-up or run phase in which it failed.
        last_log_line: the engine's last log line, as printed.
        files: log and forensics, in the order in which one would open them.
    """

    exit_code = 1

    def __init__(
        self,
        headline: str,
        details: Sequence[str] = (),
        *,
        profile: str = "",
        phase: str = "",
        last_log_line: str = "",
        files: Sequence[Path] = (),
    ) -> None:
        super().__init__(headline, details)
        self.profile = profile
        self.phase = phase
        self.last_log_line = last_log_line
        self.files = tuple(files)


class Hang(EngineFault):
    """No progress within a phase's deadline.

    Args:
        waited_s: seconds without progress when the deadline fired.
        limit_s: the deadline, seconds.
        usual_s: usual length of the phase on this host class, seconds, when recorded.
    """

    def __init__(
        self,
        headline: str,
        details: Sequence[str] = (),
        *,
        waited_s: float,
        limit_s: float,
        usual_s: float | None = None,
        profile: str = "",
        phase: str = "",
        last_log_line: str = "",
        files: Sequence[Path] = (),
    ) -> None:
        super().__init__(
            headline, details, profile=profile, phase=phase, last_log_line=last_log_line, files=files
        )
        self.waited_s = waited_s
        self.limit_s = limit_s
        self.usual_s = usual_s


class Exited(EngineFault):
    """The engine process died, by exit code or signal."""


class LoadFault(TokgateError):
    """A run ended without a usable Sample."""

    exit_code = 1


class NotAnswering(LoadFault):
    """A server that the user gave by its address does not answer, or not as SGLang: nothing was compared."""

    exit_code = 3
