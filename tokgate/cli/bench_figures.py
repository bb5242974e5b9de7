"""What ``tokgate bench`` found, for people and for programs."""

from __future__ import annotations

import datetime
from dataclasses import asdict
from typing import TYPE_CHECKING

from tokgate import __version__

if TYPE_CHECKING:
    from tokgate.cli.bench_run import Run

SCHEMA = "tokgate-bench/1"

# Shown first, in this order, with what people call them.
ROWS = (
    ("output_tok_s", "output, whole run", "tok/s"),
    ("output_tok_s_steady", "output, steady", "tok/s"),
    ("decode_tok_s", "output, while decoding", "tok/s"),
    ("ttft_s", "TTFT", "ms"),
    ("step_ms", "step gap (per chunk)", "ms"),
    ("tokens_per_step", "tokens per step", ""),
    ("tpot_ms", "TPOT", "ms"),
    ("e2e_s", "request", "s"),
    ("accept_length", "accept length", ""),
    ("cycle_ms", "verify cycle", "ms"),
    ("cached_share", "prompt tokens from cache", "%"),
    ("queue_s", "queue", "ms"),
    ("goodput_request_per_s", "goodput", "req/s"),
)


def document(url: str, server: str, ran: Run) -> dict[str, object]:
    """The file that ``--json`` writes: docs/reference/options.md lists its keys."""
    plan, measured, cut = ran.plan, ran.measured, ran.cut
    return {
        "schema": SCHEMA,
        "tokgate": __version__,
        "finished_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "url": url,
        "server": server,
        "ended": {
            "how": cut.how if cut is not None else "complete",
            "during": ran.during,
            "why": cut.headline if cut is not None else "",
        },
        "workload": asdict(plan),
        "workload_digest": plan.digest,
        "prompts_digest": measured.prompts_digest,
        "duration_s": measured.duration_s,
        "window_s": measured.window_s,
        "metrics": measured.metrics,
        "audit": asdict(measured.audit),
        "void": [asdict(reason) for reason in measured.void],
        "requests": [asdict(request) for request in measured.requests],
    }


def show(url: str, server: str, ran: Run) -> None:
    """Print the figures, the client's account of itself, and why they do not count, if they do not."""
    from rich.console import Console
    from rich.table import Table

    plan, measured = ran.plan, ran.measured

    class Figures(Console):
        def on_broken_pipe(self) -> None:
            # Rich would end the process with 1, which means failed requests here.
            raise BrokenPipeError

    console = Figures(highlight=False, soft_wrap=True)
    load = f"closed loop, {plan.concurrency} at once"
    if plan.arrival is not None:
        rate = f" {plan.arrival.rate_per_s:g} requests/s" if plan.arrival.rate_per_s else ""
        load = f"open loop, {plan.arrival.process}{rate}"
    console.print(f"{server} at {url}, {plan.route}", markup=False)
    if ran.during == "warm-up":
        load = f"warm-up, {load}"
    tokens = f"{plan.output_tokens} tokens"
    if plan.prompts.kind == "trace":
        tokens = f"a trace, {tokens} where it says none"
    requests = f"{plan.requests} request{'s' if plan.requests > 1 else ''} of {tokens}"
    lasted = (
        f"{measured.duration_s:.2f} s" if ran.cut is None else f"{measured.window_s:.2f} s until it ended"
    )
    # Of a client that was lost nobody knows how long it was at work.
    console.print("; ".join([load, requests, *([lasted] if measured.window_s else [])]), markup=False)
    table = Table("metric", box=None, pad_edge=False)
    for title in ("value", "p50", "p99", "unit"):
        table.add_column(title, justify="left" if title == "unit" else "right")
    for name, title, unit in ROWS:
        scale = 1e3 if unit == "ms" and name.endswith("_s") else 100 if unit == "%" else 1
        values = [measured.metrics.get(key) for key in (name, f"{name}_p50", f"{name}_p99")]
        if any(value is not None for value in values):
            table.add_row(title, *("" if v is None else f"{v * scale:.4g}" for v in values), unit)
    if table.row_count:
        console.print(table, soft_wrap=False)
    audit = measured.audit
    lag = "no kernel stamps" if audit.lag_p99_s is None else f"lag p99 {audit.lag_p99_s * 1e6:.0f} us"
    reads = f"merged reads {audit.merged_read_share:.2%}"
    read_by = "compiled" if audit.reader == "c" else f"python ({audit.reader_reason})"
    if audit.reader:  # of a client that brought nothing there is nothing to say
        console.print(f"client: {audit.stamp_tier} stamps, {lag}, {reads}, reader {read_by}", markup=False)
    for reason in measured.void:
        console.print(f"VOID {reason.cause}: {reason.message}", markup=False)
