"""Why an engine died: the line or traceback that says so, and never one that only looks like it."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokgate.sglang import log_events as ev
from tokgate.sglang.log import read_events

_TAIL_BYTES = 4 << 20
_HEADER = re.compile(r"\[\d{4}-\d\d-\d\d |INFO: ")
_HEAD_SHOWN, _TAIL_SHOWN = 1, 8


@dataclass(frozen=True, slots=True)
class Cause:
    """What the log says of a death.

    Attributes:
        line: the line that says most; empty when the log does not say.
        quoted: lines to show; a long traceback without its middle.
        fatal: the engine itself said that it cannot go on.
    """

    line: str
    quoted: tuple[str, ...]
    fatal: bool = False


def cause(log: Path) -> Cause:
    """Read the end of a log for the cause of a death.

    The first fatal message counts (later ones are its consequences), else the last traceback that is not
    known to be harmless, else the last line that speaks of an error.
    """
    fatal: list[ev.Fatal] = []
    seen: list[ev.ExceptionSeen] = []
    suspect = ""
    data = _tail(log)
    for event in read_events([data]):
        if isinstance(event, ev.Fatal) and not event.after_shutdown:
            fatal.append(event)
        elif isinstance(event, ev.ExceptionSeen):
            seen.append(event)
        elif isinstance(event, ev.Suspect):
            suspect = event.text
        elif isinstance(event, ev.Watchdog) and not event.soft:
            suspect = f"{event.subject} watchdog timeout"
    whole = next((event for event in fatal if len(event.lines) > 1), None)
    if whole is not None:
        return Cause(whole.summary.strip(), _shorten(whole.lines), fatal=True)
    if seen:
        return Cause(seen[-1].summary.strip(), _shorten(seen[-1].lines))
    if fatal:
        line = fatal[0].summary.strip()
        return Cause(_with_reason(line, data), _following(line, data))
    return Cause(suspect.strip(), _following(suspect.strip(), data) if suspect else ())


def _with_reason(line: str, data: bytes) -> str:
    # The C++ runtime says what was thrown in an indented line of its own.
    for following in _following(line, data)[1:]:
        if following.strip().startswith("what():"):
            return f"{line}: {following.strip().removeprefix('what():').strip()}"
    return line


def _following(line: str, data: bytes, count: int = 4) -> tuple[str, ...]:
    """The line as printed, and what the same message goes on with: up to the next line with a header."""
    lines = [item.rstrip() for item in data.decode(errors="replace").splitlines()]
    for index, item in enumerate(lines):
        if line in item:
            rest = itertools.takewhile(lambda text: not _HEADER.match(text), lines[index + 1 : index + count])
            return (item, *(text for text in rest if text.strip()))
    return (line,)


def _shorten(lines: Sequence[str]) -> tuple[str, ...]:
    if len(lines) <= _HEAD_SHOWN + _TAIL_SHOWN + 1:
        return tuple(lines)
    left_out = len(lines) - _HEAD_SHOWN - _TAIL_SHOWN
    return (*lines[:_HEAD_SHOWN], f"  ... {left_out} lines ...", *lines[-_TAIL_SHOWN:])


def _tail(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read()
    except OSError:
        return b""
