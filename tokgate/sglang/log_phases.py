"""What a log event says about the server's state: its start-up phase, and whether it goes down."""

from __future__ import annotations

from tokgate.sglang import log_events as ev
from tokgate.sglang.log_events import Event


def phase_of(event: Event) -> str | None:
    """The start-up phase that a server is in after this event; ``None`` when the event does not say.

    ``imports``, ``weights``, ``kv_cache``, ``capture:<kind>@TPn``, ``warmup``, ``ready``; before the first
    event it is ``spawn``. Phases come back: with speculation the draft's weights follow the target's.
    """
    match event:
        case ev.ServerArgs() | ev.DistributedBegin():
            return "imports"
        case ev.WeightsBegin():
            return "weights"
        case ev.WeightsEnd() | ev.KvCache():
            return "kv_cache"
        case ev.CaptureBegin(kind=kind, rank=rank):
            return f"capture:{kind}@{_tensor_rank(rank)}"
        case ev.CaptureEnd() | ev.Capacity() | ev.Serving():
            return "warmup"
        case ev.Ready():
            return "ready"
        case _:
            return None


def is_fatal(event: Event) -> bool:
    """Whether the server does not survive what the event tells."""
    return isinstance(event, ev.Fatal) or (isinstance(event, ev.Watchdog) and not event.soft)


def _tensor_rank(rank: str | None) -> str:
    parts = (rank or "").split()
    return next((part for part in parts if part.startswith("TP")), rank or "TP0")
