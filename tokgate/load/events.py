"""From kept events to facts, after the clock has stopped: token counters, outcome, the server's report.

Standard library only. Tokens are the server's counters (``meta_info.completion_tokens`` of SGLang,
``usage.completion_tokens`` of the OpenAI routes), never numbers of events.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import Any

from tokgate.load.record import NO_COUNTER, Record

UNCOUNTED = -1
_EMPTY = (b'"content":""', b'"text":""', b'"choices":[]', b"[DONE]")


@dataclass(slots=True)
class Facts:
    """What one record says.

    Attributes:
        outcome, detail: as :class:`tokgate.load.sample.Request` lists them.
        counts: per event, the cumulative token counter where it grew, 0 where the event brought no
            token, ``UNCOUNTED`` where it did but the server counts only at the end of the stream.
        fields: what the server reported on the request, by the names of Request.
        server_e2e_s: the server's own duration of the request, ``None`` when not reported.
    """

    outcome: str
    detail: str
    counts: array[int]
    fields: dict[str, Any] = field(default_factory=dict)
    server_e2e_s: float | None = None


def digest(record: Record, keep_output_ids: bool = False) -> Facts:
    """Read one record.

    Args:
        record: as the worker kept it.
        keep_output_ids: also read the generated token ids.
    """
    facts = Facts(record.outcome, record.detail, array("i", bytes(4 * len(record.users))))
    parsed = _parse_whole(record, facts)
    _count(record, parsed, facts)
    total = max((count for count in facts.counts if count > 0), default=None)
    final_total: int | None = None
    finished = False
    for position in sorted(parsed):
        event = parsed[position]
        finished = _report(event, facts) or finished
        value = _counter(event)
        final_total = value if value is not None else final_total
    if total is None:
        total = final_total
    facts.fields["completion_tokens"] = total
    if keep_output_ids:
        facts.fields["output_ids"] = _output_ids(parsed, total)
    if not facts.outcome:
        if not finished:
            facts.outcome, facts.detail = "early_close", "the stream ended without a final event"
        elif total is None:
            facts.outcome, facts.detail = "malformed", "no token counter anywhere in the stream"
        elif total < record.asked:
            facts.outcome, facts.detail = "short", f"{total} tokens of {record.asked}"
        else:
            facts.outcome = "ok"
    return facts


def _fail(facts: Facts, outcome: str, detail: str) -> None:
    if not facts.outcome:
        facts.outcome, facts.detail = outcome, detail[:400]


def _parse_whole(record: Record, facts: Facts) -> dict[int, dict[str, Any]]:
    parsed: dict[int, dict[str, Any]] = {}
    for position, payload in sorted(record.whole.items()):
        text = payload.strip()
        if text == b"[DONE]":
            continue
        try:
            event = json.loads(text)
        except (ValueError, RecursionError) as error:
            _fail(facts, "malformed", f"event {position} is not JSON: {text[:120]!r} ({error})")
            continue
        if not isinstance(event, dict):
            _fail(facts, "malformed", f"event {position} is not an object: {text[:120]!r}")
        elif event.get("error") or event.get("object") == "error":
            _fail(facts, "stream_error", text[:300].decode("utf-8", "replace"))
        else:
            parsed[position] = event
    return parsed


def _section(event: dict[str, Any], key: str) -> dict[str, Any]:
    found = event.get(key)
    return found if isinstance(found, dict) else {}


def _counter(event: dict[str, Any]) -> int | None:
    for section in ("meta_info", "usage"):
        value = _section(event, section).get("completion_tokens")
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _count(record: Record, parsed: dict[int, dict[str, Any]], facts: Facts) -> None:
    """Fill ``counts``: the counter where it grew."""
    found = [None if counter == NO_COUNTER else counter for counter in record.counters]
    for position, event in parsed.items():
        found[position] = _counter(event)
    counted = sum(value is not None for value in found)
    if counted <= 1 and len(found) > 2:
        _count_bearing(record, parsed, facts)
        return
    highest = 0
    for position, value in enumerate(found):
        if value is None:
            continue
        if value < highest:
            _fail(facts, "malformed", f"token counter went back from {highest} to {value}")
        elif value > highest:
            facts.counts[position] = highest = value


def _count_bearing(record: Record, parsed: dict[int, dict[str, Any]], facts: Facts) -> None:
    """A server without a running counter: mark the events that bear text."""
    for position in range(len(record.users)):
        payload = record.whole.get(position)
        if payload is None:
            payload = record.kept[position]
        elif position not in parsed:
            continue
        if not any(empty in payload.replace(b'": ', b'":') for empty in _EMPTY):
            facts.counts[position] = UNCOUNTED


def _report(event: dict[str, Any], facts: Facts) -> bool:
    """Take over what the server reports on the request; True when the event ends the stream."""
    meta, usage = _section(event, "meta_info"), _section(event, "usage")
    fields = facts.fields
    details = _section(usage, "prompt_tokens_details")
    for name, value in (
        ("prompt_tokens", meta.get("prompt_tokens", usage.get("prompt_tokens"))),
        ("cached_tokens", meta.get("cached_tokens", details.get("cached_tokens"))),
        ("verify_count", meta.get("spec_verify_ct")),
    ):
        if isinstance(value, int) and not isinstance(value, bool):
            fields[name] = value
    queue = meta.get("queue_time")
    if isinstance(queue, (int, float)) and not isinstance(queue, bool):
        fields["queue_s"] = float(queue)
    for name in ("spec_correct_drafts_histogram", "spec_accept_histogram"):
        histogram = meta.get(name)
        if isinstance(histogram, list) and all(isinstance(item, int) for item in histogram):
            fields["accept_histogram"] = histogram
            break
    latency = meta.get("e2e_latency")
    if isinstance(latency, (int, float)):
        facts.server_e2e_s = float(latency)
    reason = meta.get("finish_reason")
    choices = event.get("choices")
    if reason is None and isinstance(choices, list) and choices and isinstance(choices[0], dict):
        reason = choices[0].get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if kind in ("abort", "error"):
        _fail(facts, "stream_error", f"finish_reason {json.dumps(reason)}")
    return kind is not None


def _output_ids(parsed: dict[int, dict[str, Any]], total: int | None) -> list[int] | None:
    """Token ids of the stream: the last event's when cumulative, else all events' in order."""
    lists = [event["output_ids"] for _, event in sorted(parsed.items()) if "output_ids" in event]
    if not all(isinstance(ids, list) and all(isinstance(i, int) for i in ids) for ids in lists) or not lists:
        return None
    if len(lists[-1]) == total:
        return list(lists[-1])
    joined = [token for ids in lists for token in ids]
    return joined if len(joined) == total else None
