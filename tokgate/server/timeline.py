"""The phases of a start-up, as the log tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokgate.config.gate import PhaseFloors
from tokgate.sglang import log_events as ev

SPAWN, IMPORTS, WEIGHTS, KV_CACHE = "spawn", "imports", "weights", "kv_cache"
CAPTURE, SETUP, WARMUP, FIRST_TOKEN = "capture:", "setup", "warmup", "first_token"
DRAFT = "draft_"
_LABELS: Mapping[str, str] = {
    WEIGHTS: "weight loading",
    DRAFT + WEIGHTS: "draft weight loading",
    KV_CACHE: "KV cache",
    DRAFT + KV_CACHE: "draft KV cache",
    SETUP: "set-up after graph capture",
    WARMUP: "warm-up",
    FIRST_TOKEN: "first generation",
}


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One phase that ended, and how long it took."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Capture:
    """One graph capture on one rank, as the engine printed it.

    Attributes:
        seconds: ``None``: it began and did not end.
        begun_s: when its first line was seen, seconds since the launch; ``None`` where nobody watched.
    """

    kind: str
    rank: str
    seconds: float | None = None
    gb: float | None = None
    available_gb: float | None = None
    begun_s: float | None = None


class Timeline:
    """Turns the events of a log into phases.

    Phase names: ``spawn``, ``imports``, ``weights``, ``kv_cache`` (the second model's with ``draft_``),
    ``capture:<kind>``, ``setup`` (after a capture, before the next or the warm-up), ``warmup``,
    ``first_token``. With several ranks the first to enter a phase counts, but a capture lasts until its
    last rank has ended it.

    Attributes:
        phase: the one that runs.
        since_s: when it began.
        done: those that ended, in order; a phase entered twice is listed twice.
        is_ready: the engine said that it is ready.
        nccl_version: as the log gives it.
    """

    def __init__(self, started_s: float) -> None:
        self.phase = SPAWN
        self.since_s = self._started_s = started_s
        self.done: list[PhaseTime] = []
        self.is_ready = False
        self.nccl_version: str | None = None
        self._captures: dict[tuple[str, str], Capture] = {}
        self._models_loaded: dict[str, int] = {}
        self._steps: dict[str, list[str]] = {}
        self._entered: set[tuple[str, int]] = set()

    def enter(self, phase: str, now_s: float) -> None:
        """Go to a phase; nothing happens when it runs already."""
        if phase != self.phase:
            self.done.append(PhaseTime(self.phase, now_s - self.since_s))
            self.phase, self.since_s = phase, now_s

    def take(self, event: ev.Event, now_s: float) -> None:
        """Follow one event of the log."""
        rank = event.rank or ""
        match event:
            case ev.WeightsBegin():
                self._follow(rank, self._model(rank, ended=False) + WEIGHTS, now_s)
            case ev.WeightsEnd():
                self._follow(rank, self._model(rank, ended=True) + KV_CACHE, now_s)
            case ev.CaptureBegin(kind=kind):
                self._captures[kind, rank] = Capture(kind, rank, begun_s=now_s - self._started_s)
                self._follow(rank, CAPTURE + kind, now_s)
            case ev.CaptureEnd(kind=kind):
                begun = self._captures.get((kind, rank))
                self._captures[kind, rank] = Capture(
                    kind,
                    rank,
                    event.seconds or 0.0,
                    event.used_gb,
                    event.available_gb,
                    None if begun is None else begun.begun_s,
                )
                if self.phase == CAPTURE + kind and not self.open_ranks(kind):
                    self.enter(SETUP, now_s)
            case ev.Capacity() | ev.Serving():
                self.enter(WARMUP, now_s)
            case ev.NcclVersion(version=version):
                self.nccl_version = version
            case ev.Ready():
                self.is_ready = True

    def finish(self, now_s: float) -> tuple[PhaseTime, ...]:
        """End the running phase; all phases."""
        self.done.append(PhaseTime(self.phase, now_s - self.since_s))
        return tuple(self.done)

    @property
    def captures(self) -> tuple[Capture, ...]:
        """Every capture that began, in order."""
        return tuple(self._captures.values())

    def open_ranks(self, kind: str) -> list[str]:
        """Ranks on which a capture of that kind began and has not ended."""
        return [c.rank for c in self._captures.values() if c.kind == kind and c.seconds is None]

    def ended_ranks(self, kind: str) -> list[str]:
        """Ranks on which it ended."""
        return [c.rank for c in self._captures.values() if c.kind == kind and c.seconds is not None]

    def _follow(self, rank: str, phase: str, now_s: float) -> None:
        """A rank has entered a phase: the launch does when that rank is the first to."""
        steps = self._steps.setdefault(rank, [])
        steps.append(phase)
        entered = (phase, steps.count(phase))
        if entered not in self._entered:
            self._entered.add(entered)
            self.enter(phase, now_s)

    def _model(self, rank: str, *, ended: bool) -> str:
        before = self._models_loaded.get(rank, 0)
        self._models_loaded[rank] = before + ended
        return DRAFT if before else ""


def label(phase: str) -> str:
    """A phase in words: ``draft-extend graph capture``."""
    if phase.startswith(CAPTURE):
        return f"{phase.removeprefix(CAPTURE)} graph capture"
    return _LABELS.get(phase, phase)


def floor_s(phase: str, floors: PhaseFloors) -> float:
    """Shortest no-progress deadline of a phase, seconds."""
    if phase.startswith(CAPTURE):
        return floors.capture_s
    return {
        SPAWN: floors.spawn_s,
        IMPORTS: floors.imports_s,
        WEIGHTS: floors.weights_s,
        KV_CACHE: floors.kv_cache_s,
        SETUP: floors.capture_s,
        WARMUP: floors.warmup_s,
        FIRST_TOKEN: floors.first_token_s,
    }[phase.removeprefix(DRAFT)]


def limit_s(phase: str, floors: PhaseFloors, factor: float, usual_s: Mapping[str, float]) -> float:
    """No-progress deadline of a phase: max(floor, factor x usual), seconds."""
    usual = usual_s.get(phase)
    floor = floor_s(phase, floors)
    return floor if usual is None else max(floor, factor * usual)
