"""What the recorded profiler traces show, as a table for the documentation.

    python -m benchmarks.speculation.traces [--write]

Reads the traces of tests/assets/traces (H200, SGLang 0.5.15.post1, 2026-11-29; the CPU engine shows no GPU and is
left out). ``--write`` puts the table into docs/how-to/read_a_trace.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.page import print_or_put
from tokgate.analysis.roofline import roofline
from tokgate.models.dial import Dial
from tokgate.models.maker import tensors_of
from tokgate.models.presets import find_preset
from tokgate.models.rule import build_rule
from tokgate.models.traffic import EMBEDDING, Traffic
from tokgate.report.explain_trace import roofline_line, target_ms
from tokgate.report.explain_traces import ExplainedTrace, explain_trace
from tokgate.sglang.trace_spans import DRAFT, DRAFT_EXTEND, VERIFY

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/how-to/read_a_trace.md"
CONTEXT_TOKENS = 128
DATA_SHEET_BYTES_S = 4.8e12
BEGIN, END = "<!-- traces: begin -->", "<!-- traces: end -->"
NAMES = {
    "hyb-decode-c1": "1 B, graphs, attention mode decode (prefill flashinfer, decode triton)",
    "hyb-prefill-c1": "the same, attention mode prefill",
    "eager-c1": "1 B, no graphs",
    "tp2-TP-0": "8 B over two GPUs, graphs, rank 0",
    "tp2-TP-1": "the same, rank 1",
}
HEADINGS = ("EAGLE-3, 3 steps, 1 request", "graphs a cycle", "kernels outside", "verify ms", "draft ms",
            "draft extend ms", "exchange ms", "in kernels ms", "cycle ms, under the profiler")  # fmt: skip


def row(what: str, explained: ExplainedTrace) -> str:
    """One trace."""
    found = explained.found
    assert found is not None
    parts = [found.parts_ms.get(part, 0.0) for part in (VERIFY, DRAFT, DRAFT_EXTEND)]
    times = [*parts, found.communication_ms, found.busy_ms]
    cells = [what, str(found.launches_per_step), f"{found.kernels_outside:.0f}"]
    return "| " + " | ".join([*cells, *(f"{ms:.2f}" for ms in times), f"{found.period_ms:.1f}"]) + " |"


def floor_line() -> str:
    """The 8 B target's verify pass on one of two GPUs against its floor, by the bandwidth of the data sheet."""
    preset = find_preset("8b")
    rule = build_rule(preset, 0, Dial("accept_length", 2.5, 3), None)
    weights = sum(t.nbytes for t in tensors_of(rule, "target") if not t.name.endswith(EMBEDDING))
    per_token = 2 * preset.layers * preset.kv_heads * preset.head_dim * 2
    found = explain_trace(ROOT / "tests/assets/traces/0.5.15.post1-tp2-TP-0.trace.json.gz", "tp2").found
    assert found is not None
    held = roofline(
        Traffic(weights // 2, per_token // 2),
        step_ms=target_ms(found),
        context_tokens=CONTEXT_TOKENS,
        requests=1,
        bandwidth_bytes_s=DATA_SHEET_BYTES_S,
    )
    return (
        f"Of the 8 B pair, on rank 0: {roofline_line(held, found.anchor)} (the data sheet's; not measured)."
    )


def table() -> str:
    """As Markdown."""
    lines = [f"| {' | '.join(HEADINGS)} |", "| --- |" + " ---: |" * (len(HEADINGS) - 1)]
    for name, what in NAMES.items():
        path = ROOT / f"tests/assets/traces/0.5.15.post1-{name}.trace.json.gz"
        lines.append(row(what, explain_trace(path, name)))
    lines += ["", floor_line()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(print_or_put(__doc__, DOCUMENT, BEGIN, END, table))
