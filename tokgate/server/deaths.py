"""Why an engine died: the line or traceback that says so, and never one that only looks like it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tokgate.server.logtail import last_lines

TRACEBACK = "Traceback (most recent call last):"
_TAIL_LINES = 400
_SHOWN = 14
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Fault|Warning)|[A-Z]\w+)\b.*")
_STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\] ")
_FATAL = re.compile(
    r"Scheduler hit an exception|crashed with exit code|Not enough memory|Fatal Python error|"
    r"terminate called|CUDA error|out of memory|Segmentation fault|what\(\):|[wW]atchdog timeout|error: |"
    r"No space left|"
    r"ambiguous option|unrecognized arguments|No module named|can't open file|address already in use"
)
# What an engine logs of errors that it lives with.
_BENIGN = re.compile(
    r"Ignore import error|reports ImportError|Error getting chat template|Can not initialize|Can not import|"
    r"Failed to load generation config|Fail to set RLIMIT|Unexpected error during package walk|"
    r"init failed|is not available|Received sigquit|SIGQUIT received|Warning"
)


def quote(log: Path) -> tuple[str, list[str]]:
    """What killed the engine, from the end of its log.

    Returns:
        One line for the headline (empty when the log does not say) and the lines to quote.
    """
    lines = last_lines(log, _TAIL_LINES)
    block = _last_traceback(lines)
    if block:
        return _STAMP.sub("", block[-1]), block if len(block) <= _SHOWN else [
            *block[:1],
            "  ...",
            *block[-_SHOWN:],
        ]
    for index in range(len(lines) - 1, -1, -1):
        if _FATAL.search(lines[index]) and not _BENIGN.search(lines[index]):
            return _STAMP.sub("", lines[index]), lines[index : index + 3]
    return "", []


def _last_traceback(lines: Sequence[str]) -> list[str]:
    for index in range(len(lines) - 1, -1, -1):
        if TRACEBACK in lines[index] and not _BENIGN.search(lines[index]):
            end = index + 1
            while end < len(lines) and lines[end].startswith((" ", "\t")):
                end += 1
            if end < len(lines) and not _STAMP.match(lines[end]):
                return list(lines[index : end + 1])
    return []
