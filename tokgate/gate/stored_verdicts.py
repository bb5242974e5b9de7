"""``verdicts.jsonl`` of a run, read back and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokgate.errors import SampleFault
from tokgate.verdict import Kind, Verdict

_VERDICT = {
    "kind": str,
    "subject": str,
    "headline": str,
    "body": list,
    "next_command": str | None,
    "files": list,
    "evidence": dict,
}
"""Fields of a stored verdict."""


def verdicts_in(path: Path) -> Iterator[Verdict]:
    """The verdicts of a file, in order; a last line cut short by a crash is dropped.

    Raises:
        SampleFault: it cannot be read, or a line is no verdict.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as error:
        raise SampleFault(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SampleFault(f"{path}: is not UTF-8 (byte {error.start})") from error
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line.endswith("\n"):
            return
        try:
            data = json.loads(line)
            why = _no_verdict(data)
        except (ValueError, RecursionError) as error:
            why = str(error)
        if why:
            raise SampleFault(f"{path}:{number}: not a verdict: {why}"[:400])
        lists = {key: tuple(data[key]) for key in ("body", "files") if key in data}
        yield Verdict(**{**data, "kind": Kind(data["kind"]), **lists})


def _no_verdict(data: object) -> str:
    """Why stored data is no verdict; empty when it is one."""
    if not isinstance(data, dict):
        return f"is {data!r}, not an object"
    if lacking := [key for key in ("kind", "subject", "headline") if key not in data]:
        return f"lacks {', '.join(lacking)}"
    if unknown := data.keys() - _VERDICT:
        return f"has no field {', '.join(sorted(unknown))}"
    odd = [key for key, value in data.items() if not isinstance(value, _VERDICT[key])]
    odd += [
        key
        for key in ("body", "files")
        if key not in odd and not all(isinstance(x, str) for x in data.get(key, ()))
    ]
    if data["kind"] not in list(Kind):
        odd.append("kind")
    return "" if not odd else f"{odd[0]} is {data[odd[0]]!r}"
