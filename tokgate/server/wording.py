"""How the supervisor words what it saw."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from tokgate.host import proc
from tokgate.host.proc import Process


def seconds(value: float) -> str:
    """``60 s``, ``2.5 s``, ``0.42 s``: three figures at most."""
    if value >= 10:
        return f"{value:.0f} s"
    return f"{value:.1f}".removesuffix(".0") + " s" if value >= 1 else f"{value:.2f} s"


def no_progress(what: str, waited_s: float, limit_s: float, usual_s: float | None) -> str:
    """``draft-extend graph capture: no progress for 60 s (limit 60 s, usually 3 s)``."""
    usual = f", usually {seconds(usual_s)}" if usual_s is not None else ""
    return f"{what}: no progress for {seconds(waited_s)} (limit {seconds(limit_s)}{usual})"


def status(code: int | None) -> str:
    """An exit status in words: ``exit code 1``, ``killed by SIGABRT``."""
    if code is None:
        return "is gone, status not known"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def process(item: Process) -> str:
    """``pid 12 (name)``."""
    return f"pid {item.pid} ({proc.title(item) if item.alive else item.name})"


def ranks(names: Sequence[str]) -> str:
    """``TP0-TP2, TP5``: runs of consecutive ranks joined."""
    numbers = sorted(int(name[2:]) for name in names if name.startswith("TP") and name[2:].isdigit())
    if len(numbers) != len(names):
        return ", ".join(names)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"TP{run[0]}" if len(run) == 1 else f"TP{run[0]}-TP{run[-1]}" for run in runs)
