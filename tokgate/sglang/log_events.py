"""What SGLang's log says, as typed events. Absent figures are ``None``, never 0.

Every event has the line's ``time`` (SGLang prints whole seconds, local, without zone) and ``rank``: what
stands behind the time in the line's brackets, ``TP3`` or ``DP0 TP1``; ``None`` when the line names none,
as in servers with one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Root of all events."""

    time: datetime | None = None
    rank: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerArgs(Event):
    """The arguments as resolved at the time of printing. Values that are no plain literals are text."""

    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedBegin(Event):
    """The worker begins to set up its process group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclVersion(Event):
    """NCCL's version, as the communicator prints it."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsBegin(Event):
    """Loading of one model's weights begins."""

    available_gb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsEnd(Event):
    """Loading has ended."""

    seconds: float | None = None
    model: str | None = None
    used_gb: float | None = None
    available_gb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache(Event):
    """A KV cache was allocated; with speculation there is one for the target and one for the draft."""

    tokens: int
    dtype: str | None = None
    size_gb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(Event):
    """The scheduler's limits."""

    max_total_tokens: int
    max_running_requests: int | None = None
    context_length: int | None = None
    available_gb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureBegin(Event):
    """A graph capture begins.

    Attributes:
        kind: ``target-decode``, ``target-verify``, ``target-prefill``, ``draft-decode``,
            ``draft-extend``; another name, as printed, for a kind that tokgate does not know. Up to
            0.5.13 the target's line names no kind: ``target-verify`` if the log has shown speculation.
        sizes: batch sizes (tokens for prefill) to capture; ``None`` when the line does not say.
        device: ``cuda``, ``cpu``, ...
    """

    kind: str
    sizes: tuple[int, ...] | None = None
    backend: str | None = None
    available_gb: float | None = None
    device: str = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureEnd(Event):
    """A graph capture has ended. ``kind`` and ``sizes`` as in :class:`CaptureBegin`."""

    kind: str
    seconds: float | None = None
    used_gb: float | None = None
    available_gb: float | None = None
    sizes: tuple[int, ...] | None = None
    device: str = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Event):
    """A progress bar moved: ``done`` of ``total``."""

    what: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving(Event):
    """The HTTP server listens; SGLang's own warm-up request follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Event):
    """SGLang says that it is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupTimings(Event):
    """Seconds of each start-up step by SGLang's own account (0.5.23)."""

    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBatch(Event):
    """One line of decode statistics, over the steps since the one before.

    Attributes:
        running: requests in the batch.
        tokens: tokens in the KV cache, where one pool is reported.
        accept_length: tokens a verify step, bonus included; ``None`` without speculation.
        graph: whether the target's last batch was replayed from a graph; ``None`` when not said.
        graph_device: ``cuda`` or ``cpu``, as the line says.
        gen_tok_s: generated tokens a second. The first line after idle spans the idle time too.
        queue: requests waiting.
    """

    running: int
    tokens: int | None = None
    accept_length: float | None = None
    graph: bool | None = None
    graph_device: str | None = None
    gen_tok_s: float
    queue: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillBatch(Event):
    """One line of prefill statistics.

    Attributes:
        running: requests being decoded meanwhile; 0 says that the engine was not decoding.
    """

    new_sequences: int | None = None
    new_tokens: int | None = None
    cached_tokens: int | None = None
    running: int | None = None
    queue: int | None = None
    graph: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridAttention(Event):
    """Prefill and decode use different attention backends: here the attention mode has an effect."""

    prefill_backend: str | None = None
    decode_backend: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint(Event):
    """SGLang changed or chose something by itself. ``key`` names the argument where tokgate knows it."""

    text: str
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retraction(Event):
    """Requests were taken back for want of KV cache: a run with this in it does not count."""

    requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFailure(Event):
    """SGLang's own health probe got no answer from the detokenizer within ``seconds``."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchdog(Event):
    """A watchdog fired. A soft one only reports; a hard one kills the server."""

    subject: str
    timeout_s: float | None = None
    soft: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown(Event):
    """Somebody asked the server to stop: what follows is its consequence."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatal(Event):
    """The server is going down, or could not come up.

    Attributes:
        lines: as printed, tracebacks whole.
        after_shutdown: the log had shown a request to stop before: a consequence, not a cause.
    """

    lines: tuple[str, ...]
    after_shutdown: bool = False

    @property
    def summary(self) -> str:
        """The line that says most: the exception's own, otherwise the first."""
        return _telling_line(self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceptionSeen(Event):
    """A traceback that is neither known to be fatal nor known to be harmless."""

    lines: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The exception's own line."""
        return _telling_line(self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect(Event):
    """A line that speaks of an error and is not known to be harmless."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Benign(Event):
    """Looks alarming and is not. ``reason`` is tokgate's word for its kind."""

    reason: str
    text: str


def _telling_line(lines: tuple[str, ...]) -> str:
    """The exception's own line: the first without indent after the last frame of the last stack."""
    frames = [index for index, line in enumerate(lines) if line.startswith("  File ")]
    if frames:
        for line in lines[frames[-1] :]:
            if line and not line[0].isspace():
                return line
    return lines[0] if lines else ""
