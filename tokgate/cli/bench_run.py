"""``tokgate bench`` at work: warm-up and measurement, a bar that shows them, and signals that end them."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, Literal, Self

from tokgate.config.workloads import Workload
from tokgate.load.endings import ServerLost
from tokgate.load.prompts import PromptSet, build
from tokgate.load.routes import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokgate.load.client import Deadlines, Slo, Stamps
    from tokgate.load.endings import CutShort
    from tokgate.load.measurement import Measurement
    from tokgate.load.processes import Progress
    from tokgate.load.routes import Protocol

GONE_WITHIN_S = 1.0
"""How long a server may still take connections after it failed the last request, and count as gone."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Heed:
    """Signals that end a measurement in order.

    From the first question on (a call, which the client makes while it measures) the first signal is remembered and
    answered with; before, it ends the process as ever. A second one ends at once.
    """

    def __init__(self) -> None:
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self._asked = False
        self._came = ""

    def __call__(self) -> str:
        self._asked = True
        return self._came

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # A shell that starts a command in the background has it ignore some: that stays.
            for number in _SIGNALS:
                if (was := signal.getsignal(number)) is not signal.SIG_IGN:
                    self._before[number] = was
                    signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, was in self._before.items():
            signal.signal(number, was)

    def _take(self, number: int, frame: FrameType | None) -> None:
        was = self._before[number]
        if self._asked:
            signal.signal(number, signal.SIG_DFL)
            self._came = f"ended by {signal.Signals(number).name}"
        elif callable(was):
            was(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it.

    Attributes:
        during: what ``plan`` is: the measurement, or the warm-up that it did not get beyond.
        plan: what was asked.
        measured: what was measured.
        cut: why it did not come to its end; ``None`` when it did.
    """

    during: Literal["warm-up", "measurement"]
    plan: Workload
    measured: Measurement
    cut: CutShort | None = None


def run(
    url: str,
    plan: Workload,
    chosen: PromptSet,
    *,
    deadlines: Deadlines,
    protocol: Protocol,
    slo: Slo | None,
    pins: list[int] | None,
    stamps: Stamps,
    warmup: int,
    quiet: bool,
    stop: Callable[[], str],
) -> Run:
    """Warm up, then measure; see :func:`tokgate.load.client.measure`.

    Args:
        chosen: prompts of ``plan``.
        warmup: requests before, which do not count; a trace has none.
        quiet: without a progress bar.
        stop: see ``measure``.
    """
    from tokgate.load.client import CutShort, measure

    during: Literal["warm-up", "measurement"] = "measurement"
    asked = plan
    with _progress(quiet) as show:
        try:
            if warmup and plan.prompts.kind != "trace":
                # Other prompts than the measured ones, whose prefixes would otherwise be in the server's cache.
                during, asked = (
                    "warm-up",
                    replace(
                        plan,
                        requests=warmup,
                        concurrency=min(plan.concurrency, warmup),
                        arrival=None,
                        prompts=replace(plan.prompts, seed=plan.prompts.seed + plan.requests + 1),
                    ),
                )
                measure(
                    url, asked, build(asked), deadlines=deadlines, protocol=protocol, pin_cpus=pins, stop=stop
                )
            during, asked = "measurement", plan
            measured = measure(
                url,
                plan,
                chosen,
                deadlines=deadlines,
                protocol=protocol,
                slo=slo,
                pin_cpus=pins,
                stamps=stamps,
                on_progress=show,
                stop=stop,
            )
        except CutShort as cut:
            whole = replace(cut.measurement, void=(cut.void, *cut.measurement.void))
            return Run(during, asked, whole, cut)
    if _is_gone(url, measured):
        lost = ServerLost(measured)
        return Run(during, asked, replace(measured, void=(lost.void, *measured.void)), lost)
    return Run(during, asked, measured)


def _is_gone(url: str, measured: Measurement) -> bool:
    """Whether the server went away in the run: its last request failed on the connection, and so does another now."""
    if measured.requests[-1].outcome not in ("refused", "early_close"):
        return False
    target = resolve(url)
    # A process that is being ended may close its connections before it stops listening.
    deadline = time.monotonic() + GONE_WITHIN_S
    while time.monotonic() < deadline:
        with socket.socket(target.family, socket.SOCK_STREAM) as trial:
            trial.settimeout(GONE_WITHIN_S)
            try:
                trial.connect(target.address)
            except OSError:
                return True
        time.sleep(0.05)
    return False


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    if quiet:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("warm-up", total=None, rate="")

        def show(progress: Progress) -> None:
            rate = f"{progress.events / progress.elapsed_s:.0f} chunks/s" if progress.elapsed_s > 0 else ""
            failed = f", {progress.failed} failed" if progress.failed else ""
            bar.update(
                task,
                description="measuring",
                total=progress.total,
                completed=progress.done,
                rate=rate + failed,
            )

        yield show
