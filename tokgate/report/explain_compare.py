"""Two explained logs beside each other: what differs, and whether speculation paid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokgate.analysis.breakeven import BreakEven, break_even
from tokgate.report.explain_breakeven import break_even_lines
from tokgate.report.explain_record import Explanation, Rate

# Printed times are whole seconds: a difference of one says nothing.
NOTICEABLE_S = 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs from log A to log B.

    Attributes:
        arguments: argument -> (A, B), those that differ; ``None`` for one that is not in a log.
        arguments_known: whether both logs show their arguments.
        seconds: phase or ``ready`` -> (A, B).
        captures: kind -> (captures in A, captures in B), where the numbers differ.
        rates: the rates at the number of running requests that both logs have most lines of.
        break_even: present when one log is with speculation, the other without, and both have rates.
        judged: ``A`` or ``B``: the log with speculation.
        why_not: why there is no break-even.
    """

    first: str
    second: str
    arguments: Mapping[str, tuple[Any, Any]]
    arguments_known: bool
    seconds: Mapping[str, tuple[float | None, float | None]]
    captures: Mapping[str, tuple[int, int]]
    rates: tuple[Rate, Rate] | None
    break_even: BreakEven | None = None
    judged: str = ""
    why_not: str = ""
    hints: tuple[tuple[str, ...], tuple[str, ...]] = field(default=((), ()))


def compare(one: Explanation, two: Explanation) -> Comparison:
    """Compare two logs. Logs are no samples: what is found is a hint where to measure, not a verdict."""
    known = bool(one.arguments) and bool(two.arguments)
    keys = dict.fromkeys([*one.arguments, *two.arguments])
    arguments = {
        key: (one.arguments.get(key), two.arguments.get(key))
        for key in keys
        if known and one.arguments.get(key) != two.arguments.get(key)
    }
    rates = common_rates(one, two)
    found, judged, why_not = _break_even(one, two, rates)
    return Comparison(
        first=one.name,
        second=two.name,
        arguments=arguments,
        arguments_known=known,
        seconds=_seconds(one, two),
        captures=_capture_counts(one, two),
        rates=rates,
        break_even=found,
        judged=judged,
        why_not=why_not,
        hints=(
            tuple(hint for hint in one.hints if hint not in two.hints),
            tuple(hint for hint in two.hints if hint not in one.hints),
        ),
    )


def common_rates(one: Explanation, two: Explanation) -> tuple[Rate, Rate] | None:
    """Rates at the same number of running requests; of several the one with most lines in both."""
    others = {rate.running: rate for rate in two.rates}
    pairs = [(rate, others[rate.running]) for rate in one.rates if rate.running in others]
    return max(pairs, key=lambda pair: min(pair[0].lines, pair[1].lines), default=None)


def _break_even(
    one: Explanation, two: Explanation, rates: tuple[Rate, Rate] | None
) -> tuple[BreakEven | None, str, str]:
    if one.speculative is None or two.speculative is None:
        return None, "", "a log does not show whether its server speculates"
    if one.speculative == two.speculative:
        both = "both servers speculate" if one.speculative else "neither server speculates"
        return None, "", f"{both}"
    if rates is None:
        return None, "", "no number of running requests that both logs have rates for"
    drafting, plain = (rates[0], rates[1]) if one.speculative else (rates[1], rates[0])
    record = one if one.speculative else two
    if drafting.accept_length is None or drafting.accept_length < 1 or plain.median_tok_s <= 0:
        return None, "", "the log with speculation shows no accept length"
    steps = record.arguments.get("speculative_num_steps")
    usable = isinstance(steps, int) and drafting.accept_length <= steps + 1
    found = break_even(
        baseline_tok_s=round(plain.median_tok_s / plain.running, 2),
        cycle_ms=round(drafting.cycle_ms, 2),
        accept_length=round(drafting.accept_length, 2),
        draft_steps=steps if usable else None,
    )
    return found, "A" if one.speculative else "B", ""


def _seconds(one: Explanation, two: Explanation) -> dict[str, tuple[float | None, float | None]]:
    def totals(record: Explanation) -> dict[str, float]:
        found: dict[str, float] = {}
        for phase in record.phases:
            if phase.seconds is not None and phase.name != "ready":
                name = phase.name.partition("@")[0]
                found[name] = found.get(name, 0.0) + phase.seconds
        if record.ready_after_s is not None:
            found["ready after"] = record.ready_after_s
        return found

    left, right = totals(one), totals(two)
    return {name: (left.get(name), right.get(name)) for name in dict.fromkeys([*left, *right])}


def _capture_counts(one: Explanation, two: Explanation) -> dict[str, tuple[int, int]]:
    kinds = dict.fromkeys(capture.kind for capture in [*one.captures, *two.captures])
    counts = {
        kind: (
            sum(capture.kind == kind and capture.ended for capture in one.captures),
            sum(capture.kind == kind and capture.ended for capture in two.captures),
        )
        for kind in kinds
    }
    return {kind: pair for kind, pair in counts.items() if pair[0] != pair[1]}


def comparison_text(found: Comparison) -> str:
    """The comparison as text."""
    lines = [f"A {found.first} / B {found.second}: {_rates_line(found)}"]
    if not found.arguments_known:
        lines.append("  arguments  not compared: a log does not show them")
    elif not found.arguments:
        lines.append("  arguments  equal, as far as they change what is measured")
    lines += [f"  argument   {key}: {one} -> {two}" for key, (one, two) in found.arguments.items()]
    for name, (one_s, two_s) in found.seconds.items():
        if name.startswith("capture:") and None in (one_s, two_s):
            # Said by the number of captures, below.
            continue
        if one_s is None or two_s is None or abs(one_s - two_s) >= NOTICEABLE_S:
            lines.append(f"  start-up   {name}: {_took(one_s)} -> {_took(two_s)}")
    for kind, (before, after) in found.captures.items():
        lines.append(f"  captures   {kind}: {before} -> {after}")
    for label, hints in zip(("A", "B"), found.hints, strict=True):
        lines += [f"  only in {label}  hint: {hint}" for hint in hints]
    if found.break_even is None:
        lines.append(f"  break-even not computed: {found.why_not}")
    else:
        lines.append(f"  break-even of {found.judged}, one request of {_running(found)} running:")
        lines += [f"  {line}" for line in break_even_lines(found.break_even)]
    lines.append("  two logs are no paired measurement: tokgate gate decides")
    return "\n".join(lines)


def _running(found: Comparison) -> int:
    return found.rates[0].running if found.rates is not None else 0


def _rates_line(found: Comparison) -> str:
    if found.rates is None:
        return "rates not comparable: no number of running requests in both"
    one, two = found.rates
    change = f"{two.median_tok_s / one.median_tok_s:.2f}x" if one.median_tok_s > 0 else "not comparable"
    return f"{one.median_tok_s:.1f} -> {two.median_tok_s:.1f} tok/s at {one.running} running, {change}"


def _took(seconds: float | None) -> str:
    return "not in the log" if seconds is None else f"{seconds:.0f} s"
