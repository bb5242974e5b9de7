"""An explained log as text: line 1 says what matters most, the rest says why."""

from __future__ import annotations

from collections.abc import Sequence

from tokgate.report.explain_ranks import missing_ranks, odd_ranks
from tokgate.report.explain_record import Capture, Explanation, rank_order
from tokgate.sglang.attention import attention_mode_effect
from tokgate.sglang.log_events import Fatal

# Below this mean the draft model helps nothing: a bonus token a pass is all there is.
NOTHING_ACCEPTED = 1.02
_SHOWN_HINTS = 12
_ARGUMENTS = (
    ("tp_size", "tp"),
    ("attention_backend", "attention"),
    ("prefill_attention_backend", "prefill attention"),
    ("decode_attention_backend", "decode attention"),
    ("sampling_backend", "sampling"),
    ("dtype", "dtype"),
    ("max_running_requests", "max running"),
    ("cuda_graph_decode", "decode graphs"),
    ("cuda_graph_decode_max_bs", "max bs"),
    ("cuda_graph_prefill", "prefill graphs"),
)
_SPECULATION = (
    ("speculative_num_steps", "steps"),
    ("speculative_eagle_topk", "topk"),
    ("speculative_num_draft_tokens", "draft tokens"),
    ("speculative_attention_mode", "attention mode"),
)


NO_LOG = "NO SGLANG LOG: no line of it was recognised"


def headline(record: Explanation) -> str:
    """The one line: state, rate, accept length, and what is wrong."""
    parts = [state(record)]
    rate = record.rate
    if rate is not None:
        parts.append(f"{rate.median_tok_s:.1f} tok/s at {rate.running} running")
    if record.accept_length is not None:
        parts.append(f"accept length {record.accept_length:.2f}")
    if nothing_accepted(record):
        parts.append("MISCONFIGURED: the draft's tokens are never accepted")
    if record.health_failures:
        parts.append(f"{record.health_failures} failed health probes")
    if record.retractions:
        parts.append(f"{record.retractions} retractions: runs in it do not count")
    return f"{record.name}: {'; '.join(parts)}"


def state(record: Explanation) -> str:
    """How far the server came."""
    phase = _last_phase(record)
    faults = record.own_faults
    if faults:
        return f"EXITED {phase}: {faults[0].summary}"
    if any(not watchdog.soft for watchdog in record.watchdogs):
        return f"HANG {phase}: {record.watchdogs[0].subject} watchdog timeout"
    if record.ready:
        after = f" after {record.ready_after_s:.0f} s" if record.ready_after_s is not None else ""
        return f"READY{after}"
    if record.decode_lines:
        return "RUNNING (its start is not in this log)"
    if record.phases:
        open_captures = [capture for capture in record.captures if not capture.ended]
        doubt = ", a capture has not ended" if open_captures else ""
        return f"NOT READY, last seen {phase}{doubt}"
    return NO_LOG


def is_log(record: Explanation) -> bool:
    """Whether any line of the file was recognised as SGLang's."""
    return state(record) != NO_LOG


def _last_phase(record: Explanation) -> str:
    names = [phase.name for phase in record.phases]
    if not names:
        return "in an unknown phase"
    if names[-1] == "ready":
        return "after it was ready"
    if names[-1] == "warmup" and len(names) > 1 and not record.serving:
        return f"after {names[-2]}"
    return f"in {names[-1]}"


def nothing_accepted(record: Explanation) -> bool:
    """Speculation runs and accepts nothing: wrong algorithm for the draft, or a wrong draft."""
    return record.accept_length is not None and record.accept_length < NOTHING_ACCEPTED


def text(record: Explanation) -> str:
    """The whole explanation."""
    lines = [headline(record)]
    lines += _server(record)
    lines += _phases(record)
    lines += capture_lines(record)
    lines += _decode(record)
    lines += _faults(record)
    lines += _notes(record)
    return "\n".join(lines)


def _row(word: str, what: str) -> str:
    return f"  {word:<11}{what}"


def _server(record: Explanation) -> list[str]:
    lines = []
    if record.first is not None and record.last is not None:
        span = (record.last - record.first).total_seconds()
        ranks = [rank for rank in record.ranks if rank]
        lines.append(_row("when", f"{record.first} .. {record.last} ({span:.0f} s)"))
        if record.starts > 1:
            lines.append(_row("starts", f"{record.starts} server starts in this log, taken together"))
        if ranks:
            lines.append(_row("ranks", ", ".join(ranks)))
    arguments = record.arguments
    if arguments:
        shown = [f"{word} {arguments[key]}" for key, word in _ARGUMENTS if arguments.get(key) is not None]
        lines.append(_row("server", ", ".join(shown)))
        algorithm = arguments.get("speculative_algorithm")
        if algorithm:
            shown = [f"{word} {arguments[key]}" for key, word in _SPECULATION if key in arguments]
            lines.append(_row("drafting", f"{algorithm}, {', '.join(shown)}"))
    elif record.phases or record.rates:
        lines.append(_row("server", "arguments are not in this log"))
    if record.hybrid is not None:
        lines.append(
            _row(
                "attention",
                f"hybrid: prefill {record.hybrid.prefill_backend}, decode {record.hybrid.decode_backend}; "
                "the attention mode has an effect",
            )
        )
    mode = arguments.get("speculative_attention_mode")
    effect = attention_mode_effect(
        arguments,
        architectures=[model for _, model, _, _ in record.weights if model],
        hybrid_line=record.hybrid is not None if record.starts else None,
    )
    if arguments.get("speculative_algorithm") and effect.real is False and mode == "decode":
        lines.append(_row("attention", f"mode {mode}: {effect.why}"))
    for rank, version in record.nccl.items():
        lines.append(_row("nccl", f"{version}{' ' + rank if rank else ''}"))
    return lines


def _phases(record: Explanation) -> list[str]:
    shown = []
    for phase in record.phases:
        if phase.name == "ready":
            continue
        shown.append(phase.name if phase.seconds is None else f"{phase.name} {phase.seconds:.0f} s")
    lines = [_row("phases", " | ".join(shown))] if shown else []
    lines += _weights(record)
    if record.kv_cache_tokens is not None:
        lines.append(_row("kv cache", f"{record.kv_cache_tokens} tokens"))
    return lines


def _weights(record: Explanation) -> list[str]:
    """One line a model, whatever the number of ranks that loaded it."""
    lines = []
    for model in dict.fromkeys(name for _, name, _, _ in record.weights):
        loads = [load for load in record.weights if load[1] == model]
        seconds = sorted({took for _, _, took, _ in loads if took is not None})
        used = sorted({size for _, _, _, size in loads if size is not None})
        parts = [
            model or "model",
            *([f"{_span(seconds)} s"] if seconds else []),
            *([f"{_span(used)} GB"] if used else []),
            *([f"{len(loads)} loads"] if len(loads) > 1 else []),
        ]
        lines.append(_row("weights", ", ".join(parts)))
    return lines


def _span(values: Sequence[float]) -> str:
    low, high = f"{values[0]:.2f}", f"{values[-1]:.2f}"
    return low if low == high else f"{low}..{high}"


def capture_lines(record: Explanation) -> list[str]:
    """The table of captures by rank and kind, then missing and odd ranks."""
    if not record.captures:
        on = record.arguments.get("cuda_graph_decode")
        if record.starts and record.ready:
            why = " (decode graphs are disabled)" if on == "disabled" else ""
            return [_row("captures", f"none in this log{why}")]
        return []
    lines = [_row("captures", "rank      kind                  s   used GB  avail GB  sizes")]
    lines += [f"  {'':<11}{_capture(capture)}" for capture in record.captures]
    for kind, ranks in missing_ranks(record).items():
        lines.append(_row("missing", f"no {kind} capture of {', '.join(ranks)} in this log"))
    for odd in odd_ranks(record.captures):
        lines.append(_row("odd rank", f"{odd.rank or 'rank 0'} {odd.kind}: {odd.what}"))
    return lines


def _capture(capture: Capture) -> str:
    seconds = f"{capture.seconds:>7.2f}" if capture.seconds is not None else f"{'?':>7}"
    if not capture.ended:
        seconds = "not end"
    used = f"{capture.used_gb:>8.2f}" if capture.used_gb is not None else f"{'-':>8}"
    available = f"{capture.available_gb:>8.2f}" if capture.available_gb is not None else f"{'-':>8}"
    return (
        f"{capture.rank or '-':<9} {capture.kind:<15} {seconds}  {used}  {available}  {sizes(capture.sizes)}"
    )


def sizes(found: Sequence[int] | None) -> str:
    """Batch sizes, short."""
    if not found:
        return "not said"
    if len(found) <= 8:
        return " ".join(map(str, found))
    return f"{found[0]} .. {found[-1]} ({len(found)})"


def _decode(record: Explanation) -> list[str]:
    if not record.decode_lines:
        return [_row("decode", "no decode line in this log")] if record.ready else []
    thinned = f", every {record.stride}th kept" if record.stride > 1 else ""
    lines = [
        _row(
            "decode",
            f"{record.decode_lines} lines, {record.idle_lines} right after idle dropped{thinned}; "
            f"{record.prefill_lines} prefill lines",
        )
    ]
    for rate in record.rates:
        what = "step"
        accept = ""
        if rate.accept_length is not None:
            what, accept = "cycle", f", accept length {rate.accept_length:.2f}"
        lines.append(
            f"  {'':<11}{rate.running} running: {rate.median_tok_s:.1f} tok/s median, 10..90 % "
            f"{rate.low_tok_s:.1f}..{rate.high_tok_s:.1f}{accept}, {what} {rate.cycle_ms:.2f} ms "
            f"({_lines(rate.lines)})"
        )
    graph = record.graph_lines
    said = ", ".join(f"{name} {count}" for name, count in sorted(graph.items(), reverse=True))
    lines.append(_row("graphs", f"{record.graph_device} graph on decode lines: {said} (the target's alone)"))
    captured = any(capture.kind in {"target-decode", "target-verify"} for capture in record.captures)
    if captured and graph.get("eager"):
        lines.append(
            _row(
                "graphs",
                f"captured, yet {_lines(graph['eager'])} ran without: a batch larger than those captured, "
                "or not replayed",
            )
        )
    return lines


def _lines(count: int) -> str:
    return f"{count} line{'' if count == 1 else 's'}"


def _faults(record: Explanation) -> list[str]:
    lines = []
    same: dict[tuple[str, ...], list[Fatal]] = {}
    for fatal in record.own_faults:
        same.setdefault(fatal.lines, []).append(fatal)
    for quoted, faults in same.items():
        ranks = ", ".join(sorted((fatal.rank for fatal in faults if fatal.rank), key=rank_order))
        lines.append(_row("fatal", f"{faults[0].time or ''} {ranks}".strip()))
        lines += [f"    | {line}" for line in quoted]
    for watchdog in record.watchdogs:
        kind = "soft, reports only" if watchdog.soft else "hard, kills the server"
        lines.append(
            _row("watchdog", f"{watchdog.subject} {watchdog.timeout_s:g} s ({kind})".replace("None", "?"))
        )
    for seen in record.exceptions:
        lines.append(_row("exception", f"not known to be fatal: {seen.summary}"))
    if record.shutdown is not None:
        after = len(record.fatal) - len(record.own_faults)
        lines.append(_row("stopped", f"{record.shutdown.text} ({after} consequences left out)"))
    for suspect in record.suspects:
        lines.append(_row("suspect", suspect))
    if record.suspect_lines > len(record.suspects):
        lines.append(_row("suspect", f"{record.suspect_lines} lines in all"))
    return lines


def _notes(record: Explanation) -> list[str]:
    lines = [_row("hint", f"{hint}{f' [{key}]' if key else ''}") for hint, key in record.hints.items()]
    if len(lines) > _SHOWN_HINTS:
        lines = [*lines[:_SHOWN_HINTS], _row("hint", f"and {len(lines) - _SHOWN_HINTS} more")]
    if record.benign:
        shown = ", ".join(f"{reason} {count}" for reason, count in sorted(record.benign.items()))
        lines.append(_row("benign", f"{sum(record.benign.values())} lines: {shown}"))
    return lines
