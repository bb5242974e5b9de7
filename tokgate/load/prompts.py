"""The prompts of a workload: fixed token ids, the shipped texts, or a JSONL trace of the user's own."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tokgate.config.workloads import Prompts, Workload
from tokgate.errors import UsageFault

# Ids below are special tokens in most vocabularies; ids above the ceiling do not exist in small ones.
FIRST_ID = 16
CEILING = 8192
MAX_FAULTS = 10


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts in the order of sending. Either ``ids`` or ``texts`` is set.

    Attributes:
        ids: token ids, per prompt.
        texts: texts, per prompt.
        digest: first 12 hex digits of SHA-256 over what is asked; equal digests are equal prompts.
        at_s: for a trace with times, when each is sent, seconds from the start.
        output_tokens: for a trace that says so, tokens asked of each; ``None`` where it does not.
    """

    ids: tuple[tuple[int, ...], ...] | None
    texts: tuple[str, ...] | None
    digest: str
    at_s: tuple[float, ...] | None = None
    output_tokens: tuple[int | None, ...] | None = None

    def __len__(self) -> int:
        return len(self.ids if self.ids is not None else self.texts or ())


def build(workload: Workload, vocabulary: int | None = None) -> PromptSet:
    """The prompts of ``workload``, one per request, always the same ones.

    Args:
        workload: what is asked.
        vocabulary: size of the model's vocabulary, when known; ids stay below it.

    Raises:
        UsageFault: an unreadable or faulty trace (with line numbers), or a vocabulary too small.
    """
    prompts = workload.prompts
    if prompts.kind == "trace":
        return _trace(workload)
    if prompts.kind == "text":
        texts = shipped_texts()
        start = prompts.seed % len(texts)
        chosen = tuple(texts[(start + i) % len(texts)] for i in range(workload.requests))
        return PromptSet(None, chosen, _digest(chosen))
    ids = _tokens(prompts, workload.requests, vocabulary)
    return PromptSet(ids, None, _digest(ids))


def shipped_texts() -> tuple[str, ...]:
    """The texts that come with tokgate, written for it; one prompt each."""
    text = resources.files("tokgate.load").joinpath("texts.txt").read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if line.strip())


def _tokens(prompts: Prompts, count: int, vocabulary: int | None) -> tuple[tuple[int, ...], ...]:
    top = min(vocabulary or CEILING, CEILING)
    if top <= FIRST_ID + 1:
        raise UsageFault(f"vocabulary of {vocabulary} ids: token prompts need more than {FIRST_ID + 1}")
    # random() is the one method whose sequence Python promises to keep for a seed.
    uniform = random.Random(prompts.seed).random
    shared = round(prompts.shared_prefix * prompts.length_tokens)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(FIRST_ID + int(uniform() * (top - FIRST_ID)) for _ in range(length))

    prefix = draw(shared)
    return tuple(prefix + draw(prompts.length_tokens - shared) for _ in range(count))


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()[:12]


_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "input_ids": (
        "a list of token ids",
        lambda v: isinstance(v, list) and bool(v) and all(type(i) is int and i >= 0 for i in v),
    ),
    "prompt": ("a text", lambda v: isinstance(v, str) and bool(v)),
    "output_tokens": ("a whole number from 1", lambda v: type(v) is int and v >= 1),
    "at_s": ("seconds from the start", lambda v: type(v) in (int, float) and 0 <= v < 1e7),
}


def _line_faults(row: object) -> list[str]:
    """What is wrong with one line of a trace."""
    if not isinstance(row, dict):
        return [f"expected an object, got {type(row).__name__}"]
    faults = [f"unknown key '{key}' (known: {', '.join(_FIELDS)})" for key in row if key not in _FIELDS]
    faults += [
        f"{key}: expected {what}, got {str(row[key])[:60]!r}"
        for key, (what, good) in _FIELDS.items()
        if key in row and not good(row[key])
    ]
    if ("input_ids" in row) == ("prompt" in row):
        faults.append("needs either 'input_ids' or 'prompt'")
    return faults


def trace_length(path: Path) -> int:
    """Requests of a trace, good or faulty.

    Raises:
        UsageFault: it cannot be read, or is empty.
    """
    count = sum(bool(line.strip()) for line in _lines(path))
    if not count:
        raise UsageFault(f"{path}: the trace is empty", ["expected a request a line"])
    return count


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageFault(f"{path}: the trace cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageFault(f"{path}: the trace is not UTF-8 (byte {error.start})") from error


def _trace(workload: Workload) -> PromptSet:
    path = Path(workload.prompts.path or "")
    lines = _lines(path)
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            faults.append(f"{path}:{number}: not JSON: {error}")
            continue
        found = _line_faults(row)
        if not found and rows and ("input_ids" in row) != ("input_ids" in rows[0]):
            found = ["mixes token ids and texts; the first line decides"]
        if not found and rows and ("at_s" in row) != ("at_s" in rows[0]):
            found = ["'at_s' must be on every line or on none"]
        if not found and rows and row.get("at_s", 0) < rows[-1].get("at_s", 0):
            found = [f"at_s {row['at_s']} is before the line above ({rows[-1]['at_s']})"]
        faults += [f"{path}:{number}: {fault}" for fault in found]
        if not found:
            rows.append(row)
    if faults:
        more = [f"... and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
        count = len(faults)
        raise UsageFault(
            f"{path}: {count} fault{'s' if count > 1 else ''} in the trace", [*faults[:MAX_FAULTS], *more]
        )
    if len(rows) < workload.requests:
        raise UsageFault(f"{path}: {len(rows)} prompts, workload '{workload.name}' asks {workload.requests}")
    rows = rows[: workload.requests]
    timed = workload.arrival is not None and workload.arrival.process == "trace"
    if timed and "at_s" not in rows[0]:
        raise UsageFault(f"{path}: arrival 'trace' needs 'at_s' on every line")
    return PromptSet(
        ids=tuple(tuple(row["input_ids"]) for row in rows) if "input_ids" in rows[0] else None,
        texts=tuple(row["prompt"] for row in rows) if "prompt" in rows[0] else None,
        digest=_digest(rows),
        at_s=tuple(float(row["at_s"]) for row in rows) if timed else None,
        output_tokens=tuple(row.get("output_tokens") for row in rows),
    )
