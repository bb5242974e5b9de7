"""What a log line says about the course of a start-up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

SignKind = Literal["imports", "weights", "kv-cache", "capture-begin", "capture-end", "serving", "ready"]


@dataclass(frozen=True, slots=True)
class Sign:
    """One step of a start-up.

    Attributes:
        capture: kind of graph: ``target-verify``, ``draft-extend``, ...
        rank: ``TP0`` and so on; empty where the engine has one rank.
        seconds, gb, available_gb: at the end of a capture, as printed.
    """

    kind: SignKind
    rank: str = ""
    capture: str = ""
    seconds: float | None = None
    gb: float | None = None
    available_gb: float | None = None


_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d((?: [A-Z]+\d+)*)\] (.*)$")
_BEGIN = re.compile(r"^Capture (.*?) ?(?:cuda|CUDA|cpu|CPU) graph begin\.")
_END = re.compile(
    r"^Capture (.*?) ?(?:cuda|CUDA|cpu|CPU) graph end\. (?:Time elapsed: |elapsed=)([\d.]+) s[.,] "
    r"mem usage=(-?[\d.]+) GB[.,] avail mem=([\d.]+) GB"
)
_PLAIN: tuple[tuple[str, SignKind], ...] = (
    ("Load weight begin", "weights"),
    ("Load weight end", "kv-cache"),
    ("max_total_num_tokens=", "serving"),
    ("INFO:     Started server process", "serving"),
    ("The server is fired up and ready to roll!", "ready"),
)


def read_sign(line: str) -> Sign | None:
    """The step that a log line announces, if any."""
    match = _PREFIX.match(line)
    rank, text = (match[1].strip(), match[2]) if match else ("", line)
    if text.startswith("Capture "):
        if begin := _BEGIN.match(text):
            return Sign("capture-begin", rank, _slug(begin[1]))
        if end := _END.match(text):
            return Sign("capture-end", rank, _slug(end[1]), float(end[2]), float(end[3]), float(end[4]))
        return None
    for start, kind in _PLAIN:
        if text.startswith(start):
            return Sign(kind, rank)
    return None


def _slug(words: str) -> str:
    return "-".join(words.lower().split()) or "target"
