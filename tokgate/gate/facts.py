"""What a started server's log and answers tell beyond times; kept, for the server may be gone when judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokgate.errors import UsageFault
from tokgate.sglang import log_events as ev
from tokgate.sglang.log_scan import scan_file
from tokgate.sglang.readings import read_model_info


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts of one launch.

    Attributes:
        captures: kind of graph -> ranks that ended its capture; ``None`` when the log could not be read.
        hybrid_line: whether the log has the line of the hybrid attention backend; ``None`` likewise.
        architectures: of the target model, as the server reports it.
        log: its path.
    """

    captures: Mapping[str, tuple[str, ...]] | None
    hybrid_line: bool | None
    architectures: tuple[str, ...]
    log: Path


def read_facts(log: Path, model_info: Mapping[str, Any]) -> ServerFacts:
    """Read a log as it stands after the start.

    Args:
        log: the engine's output.
        model_info: what ``/model_info`` answered; empty when it did not.
    """
    captures: dict[str, tuple[str, ...]] = {}
    hybrid = started = False
    try:
        for event in scan_file(log):
            match event:
                case ev.CaptureEnd(kind=kind):
                    captures[kind] = (*captures.get(kind, ()), event.rank or "")
                case ev.HybridAttention():
                    hybrid = True
                case ev.WeightsEnd() | ev.Serving() | ev.Ready():
                    started = True
    except UsageFault:
        started = False
    # A log without a single line of the start is not this server's log as tokgate knows it.
    return ServerFacts(
        captures if started else None,
        hybrid if started else None,
        read_model_info(model_info).architectures,
        log,
    )
