"""The record of one explained log: what the text, JSON and HTML forms are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tokgate.sglang import log_events as ev


@dataclass(frozen=True, slots=True)
class Phase:
    """A start-up phase; ``seconds`` is ``None`` for the last one of a log that ends in it."""

    name: str
    begun: datetime | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Capture:
    """One graph capture of one rank.

    Attributes:
        ended: False when its end is not in the log.
        begun: when its first line was printed, to the second; ``None`` where the log does not say.
    """

    rank: str
    kind: str
    ended: bool
    seconds: float | None = None
    used_gb: float | None = None
    available_gb: float | None = None
    sizes: tuple[int, ...] | None = None
    begun: datetime | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """Decode rate at one number of running requests.

    Attributes:
        lines: decode lines behind it.
        median_tok_s, low_tok_s, high_tok_s: median, 10th and 90th percentile, all requests together.
        accept_length: mean over the lines; ``None`` without speculation. Each line spans equally many
            steps, so the plain mean is the mean over steps.
        cycle_ms: time of one step or verify cycle: accept length x running / median rate.
    """

    running: int
    lines: int
    median_tok_s: float
    low_tok_s: float
    high_tok_s: float
    accept_length: float | None
    cycle_ms: float


@dataclass(slots=True)
class Explanation:
    """The record. Counts of zero are counts; what a log does not say is ``None`` or empty."""

    name: str
    first: datetime | None = None
    last: datetime | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    ready_after_s: float | None = None
    ready: bool = False
    starts: int = 0
    serving: bool = False
    captures: list[Capture] = field(default_factory=list)
    startup_timings: Mapping[str, float] = field(default_factory=dict)
    weights: list[tuple[str, str | None, float | None, float | None]] = field(default_factory=list)
    kv_cache_tokens: int | None = None
    decode_lines: int = 0
    prefill_lines: int = 0
    idle_lines: int = 0
    stride: int = 1
    accept_length: float | None = None
    ranks: list[str] = field(default_factory=list)
    rates: list[Rate] = field(default_factory=list)
    graph_lines: Mapping[str, int] = field(default_factory=dict)
    graph_device: str = "cuda"
    fatal: list[ev.Fatal] = field(default_factory=list)
    exceptions: list[ev.ExceptionSeen] = field(default_factory=list)
    suspects: list[str] = field(default_factory=list)
    suspect_lines: int = 0
    watchdogs: list[ev.Watchdog] = field(default_factory=list)
    health_failures: int = 0
    retractions: int = 0
    shutdown: ev.Shutdown | None = None
    hybrid: ev.HybridAttention | None = None
    hints: dict[str, str | None] = field(default_factory=dict)
    benign: dict[str, int] = field(default_factory=dict)
    nccl: dict[str, str] = field(default_factory=dict)

    @property
    def rate(self) -> Rate | None:
        """The rate at the number of running requests that has most lines."""
        return max(self.rates, key=lambda rate: rate.lines, default=None)

    @property
    def speculative(self) -> bool | None:
        """Whether the server speculates; ``None`` when the log does not show it."""
        if "speculative_algorithm" in self.arguments:
            return bool(self.arguments["speculative_algorithm"])
        if self.accept_length is not None:
            return True
        if any(capture.kind.startswith("draft") for capture in self.captures):
            return True
        return False if self.rates else None

    @property
    def own_faults(self) -> list[ev.Fatal]:
        """Fatal lines that are no consequence of a request to stop."""
        return [fatal for fatal in self.fatal if not fatal.after_shutdown]


def rank_order(rank: str) -> tuple[tuple[str, int], ...]:
    """Sorts TP2 before TP10."""
    parts = []
    for part in rank.split():
        letters = part.rstrip("0123456789")
        parts.append((letters, int(part[len(letters) :] or 0)))
    return tuple(parts)
