"""The verdict that a fault stands for."""

from __future__ import annotations

from tokgate.errors import (
    EngineFault,
    Exited,
    Hang,
    HostFault,
    LoadFault,
    TokgateError,
    UsageFault,
)
from tokgate.verdict import Kind, Verdict

# The first class that fits gives the kind; Misconfigured is a UsageFault.
_KINDS: tuple[tuple[type[TokgateError], Kind], ...] = (
    (Hang, Kind.HANG),
    (Exited, Kind.EXITED),
    (EngineFault, Kind.NOT_SERVING),
    (LoadFault, Kind.NOT_SERVING),
    (UsageFault, Kind.MISCONFIGURED),
    (HostFault, Kind.UNFIT),
)


def verdict_of(error: TokgateError, subject: str) -> Verdict:
    """A fault as a verdict.

    Args:
        error: what was raised.
        subject: ``workload[profile]`` of the test that met it.
    """
    kind = next(kind for cls, kind in _KINDS if isinstance(error, cls))
    files: tuple[str, ...] = ()
    if isinstance(error, EngineFault):
        files = tuple(str(path) for path in error.files)
    return Verdict(kind, subject, error.headline, body=error.details, files=files)
