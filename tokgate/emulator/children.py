"""Bodies of the child processes: one scheduler a rank, one detokenizer."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from tokgate.emulator import processes, tokens
from tokgate.emulator.channel import Channel
from tokgate.emulator.counters import Counters
from tokgate.emulator.log_lines import Log
from tokgate.emulator.scheduler import Scheduler
from tokgate.emulator.settings import Settings
from tokgate.emulator.startup import SchedulerError, Startup

PRECISE_SLACK_NS = 1000


def scheduler_title(settings: Settings, rank: int) -> str:
    """Process title as SGLang sets it: the rank only when there are several."""
    return f"sglang::scheduler_TP{rank}" if settings.ranks > 1 else "sglang::scheduler"


def leader_barrier(links: Sequence[Channel]) -> Callable[[], None]:
    """Rank 0's side of a barrier: waits for a byte of every rank, then releases them all."""

    def wait() -> None:
        for link in links:
            if not link.sock.recv(1):
                # The rank died; a collective would wait forever, and the HTTP process sees the death.
                time.sleep(3600)
        for link in links:
            link.sock.send(b".")

    return wait


def follower_barrier(link: Channel) -> Callable[[], None]:
    """Another rank's side."""

    def wait() -> None:
        link.sock.send(b".")
        if not link.sock.recv(1):
            os._exit(0)

    return wait


def run_leader(
    settings: Settings, front: Channel, detokenizer: Channel, links: Sequence[Channel], counters: Counters
) -> int:
    """Rank 0, until the HTTP process is gone."""
    processes.prctl(processes.PR_SET_TIMERSLACK, PRECISE_SLACK_NS)
    barrier = leader_barrier(links)
    startup = Startup(settings, 0, barrier)

    def body() -> None:
        startup.run()
        front.send({"type": "ready"})
        Scheduler(settings, startup, front, detokenizer, counters, barrier).serve()

    return _guarded(settings, 0, body)


def run_follower(settings: Settings, rank: int, link: Channel) -> int:
    """Any other rank: takes part in start-up and in every pass."""
    barrier = follower_barrier(link)

    def body() -> None:
        Startup(settings, rank, barrier).run()
        while True:
            barrier()

    return _guarded(settings, rank, body)


def _guarded(settings: Settings, rank: int, body: Callable[[], None]) -> int:
    try:
        body()
    except SchedulerError:
        log = Log(rank if settings.ranks > 1 else None)
        log.line(f"Scheduler hit an exception: {traceback.format_exc()}")
        os.kill(os.getppid(), signal.SIGQUIT)
        # The HTTP process ends the tree; until then this one is still there, as in SGLang.
        time.sleep(5)
        return 1
    return 0


def run_detokenizer(settings: Settings, scheduler: Channel, front: Channel) -> int:
    """Turns token ids into text, until the scheduler is gone."""
    limit = settings.faults.number("detokenizer-exit")
    seen = 0
    text_of = tokens.text_of
    while True:
        batches: list[list[tuple[str, list[int], Any, Any]]] = scheduler.receive()
        if scheduler.closed:
            return 0
        for batch in batches:
            if limit:
                seen += sum(len(ids) for rid, ids, _, _ in batch if not is_internal(rid))
                if seen >= limit:
                    return 1
            front.send(
                {
                    "type": "tokens",
                    "entries": [
                        (rid, "".join(map(text_of, ids)), ids, finish, info)
                        for rid, ids, finish, info in batch
                    ],
                }
            )


def is_internal(rid: str) -> bool:
    """Whether a request is the server's own: its warm-up or a health probe."""
    return rid.startswith(("HEALTH_CHECK", "WARMUP"))
