"""Where a whole run's time goes, cycle by cycle: what the client sees, what the engine's log says, and the rest."""

from __future__ import annotations

from statistics import fmean

from tokgate.gate.cycle.log import CYCLE_MS
from tokgate.gate.runs import Measured

RATE = "output_tok_s"

AGREES_SHARE = 0.02
"""The log's figures are rounded (an accept length of 2.493 is 2.50 in it): within so much it says the same."""


def whole_cycle(measured: Measured, streams: int) -> dict[str, float]:
    """Milliseconds a cycle (a step, without speculation), means over runs; what is not known is left out.

    Args:
        streams: concurrency of the workload.

    Returns:
        ``whole_ms``: accept length x streams / rate of the whole run, first tokens aside, which no cycle gives;
        ``decode_ms``: from event to event at the client; ``log_ms``: between the steps that the engine's log counts.
    """
    speculative = bool(measured.samples[0].identity.resolved.get("speculative_algorithm"))
    runs = [s.metrics for s in measured.samples if RATE in s.metrics]
    pairs = [
        (m[RATE], m["accept_length"] if speculative else 1.0)
        for m in runs
        if not speculative or "accept_length" in m
    ]
    decode = measured.series("cycle_ms") if speculative else measured.series("step_ms_mean")
    logged = [s.counters[CYCLE_MS] for s in measured.samples if CYCLE_MS in s.counters]
    found: dict[str, float] = {}
    share = _decoded(measured)
    if pairs and share is not None:
        found["whole_ms"] = fmean(1e3 * length * streams / rate for rate, length in pairs) / share
    if decode:
        found["decode_ms"] = fmean(decode)
    if logged:
        found["log_ms"] = fmean(logged)
    return found


def whole_cycle_lines(measured: Measured, streams: int) -> list[str]:
    """The same in words, with what is left at each border; nothing where the rate or the cycle is not known."""
    found = whole_cycle(measured, streams)
    if "whole_ms" not in found or "decode_ms" not in found:
        return []
    whole, decode = found["whole_ms"], found["decode_ms"]
    speculative = bool(measured.samples[0].identity.resolved.get("speculative_algorithm"))
    what, made_of = ("cycle", "accept length x streams") if speculative else ("step", "streams")
    line = (
        f"of a whole run {_ms(whole)} a {what} ({made_of} / rate): {_ms(decode)} in decode as the client sees it, "
        f"{_ms(whole - decode)} ({100 * (whole - decode) / whole:.0f} %) in prefill, first tokens and idle streams"
    )
    if "log_ms" not in found:
        return [line + "; of the engine's log no interval is known that lies within a run"]
    logged = found["log_ms"]
    outside = decode - logged
    if outside < AGREES_SHARE * decode:
        return [f"{line}; the engine's log says {_ms(logged)}: nothing lies outside its own steps"]
    return [
        f"{line}; the engine's log says {_ms(logged)}, so {_ms(outside)} ({100 * outside / decode:.0f} %) lie outside "
        "its steps: detokenising, HTTP, client"
    ]


def _decoded(measured: Measured) -> float | None:
    """Share of the tokens that came from decode: a request's first event comes from its prefill.

    ``None`` where no request tells, or all of its tokens came at once.
    """
    pairs = [(r.completion_tokens, r.first_tokens) for s in measured.samples for r in s.requests]
    told = [(whole, first) for whole, first in pairs if whole and first]
    tokens, firsts = (sum(each) for each in zip(*told, strict=True)) if told else (0, 0)
    return 1 - firsts / tokens if firsts < tokens else None


def _ms(value: float) -> str:
    return f"{value:.1f} ms" if abs(value) >= 20 else f"{value:.2f} ms"
