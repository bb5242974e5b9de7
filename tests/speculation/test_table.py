"""The table of speculation, from the verdicts of a run."""

from __future__ import annotations

from tokgate.report.speculation_table import markdown, plain, speculation_rows
from tokgate.verdict import Kind, Verdict

FIGURES = {
    "metric": "decode_tok_s",
    "now": 60.6,
    "reference": 82.5,
    "ratio": 0.7345,
    "accept_length": 2.0,
    "cycle_ms": 33.0,
    "break_even_accept_length": 2.7225,
}
CYCLES = {"busy_ms": 30.0, "launches_per_step": 3}
LOSS = Verdict(Kind.NET_LOSS, "chat-bs1[eagle3-graphs]", "slower", evidence=FIGURES)


def test_a_case_with_a_trace_has_all_figures() -> None:
    traced = Verdict(Kind.NET_LOSS, LOSS.subject, "slower", evidence={**FIGURES, "cycles": CYCLES})
    graphs = Verdict(Kind.PASS, LOSS.subject, "3", evidence={"metric": "graph launches", "cycles": CYCLES})
    assert plain(speculation_rows([graphs, traced]))[1:3] == [
        "speculation              tok/s  without  speed-up  accept length  break-even  cycle ms  in kernels  "
        "verify/s  graphs a cycle",
        "chat-bs1[eagle3-graphs]   60.6     82.5     0.73x           2.00        2.72        33          30  "
        "    30.3               3",
    ]


def test_without_a_trace_what_is_not_known_is_a_dash() -> None:
    (row,) = speculation_rows([LOSS])
    assert row[7] == "-"
    assert row[-1] == "-"
    assert markdown([row])[1].startswith("| speculation | tok/s |")


def test_a_run_without_speculation_has_no_table() -> None:
    other = Verdict(Kind.PASS, "chat-bs1[baseline]", "well", evidence={"metric": "output_tok_s"})
    assert plain(speculation_rows([other])) == []
    assert markdown(speculation_rows([other])) == []
