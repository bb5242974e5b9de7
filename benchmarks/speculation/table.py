"""The tables of docs/explanation/speculation.md, from recorded runs of the matrix.

    python -m benchmarks.speculation.table [--write]

Every record under tests/assets/h200-matrix is judged again; ``--write`` puts the tables into the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.page import print_or_put
from benchmarks.speculation.judged import Record
from tokgate.analysis.cycles import Cycles
from tokgate.analysis.step_parts import OTHER
from tokgate.gate.cycle.launches import LAUNCHES, effective_ms
from tokgate.gate.cycle.whole import whole_cycle
from tokgate.report.explain_trace import target_ms
from tokgate.report.speculation_table import markdown, speculation_rows
from tokgate.sglang.trace_spans import DRAFT, DRAFT_EXTEND

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "tests" / "assets" / "h200-matrix"
PAGE = ROOT / "docs" / "explanation" / "speculation.md"
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
COSTS = (
    "case", "graphs a step", "kernels outside", "target's pass ms", "draft ms", "draft extend ms", "other ms",
    "in kernels ms", "cycle ms", "in no kernel", "of the memory's bandwidth",
)  # fmt: skip


FORETOLD = ("workload", "from steps", "for steps", "cycle ms, modelled", "measured", "off by")


@cache
def records() -> tuple[Record, ...]:
    """In the order in which they were taken; each reads its traces once."""
    found = [Record(path.parent) for path in RECORDS.glob("*/run.json")]
    return tuple(sorted(found, key=lambda record: str(record.run["started_at"])))


def tables(record: Record) -> list[str]:
    """Of one record."""
    verdicts = list(record.verdicts())
    lines = [*_head(record), "", "Speculation against its baseline:"]
    lines += markdown(speculation_rows(verdicts))
    lines += ["", "Where a step or cycle goes (traced; `cycle ms` is measured without the profiler):", ""]
    lines += _rows(COSTS, _costs(record))
    compared = [v for v in verdicts if v.evidence["metric"] not in (LAUNCHES, "decode_tok_s")]
    if compared:
        lines += ["", "Graphs on and off, attention modes:", ""]
        lines += [f"- {verdict.line}" for verdict in compared]
    if foretold := list(_foretold(record)):
        lines += [
            "",
            "What the model of one number of draft steps says of another, beside what was measured there:",
            "",
        ]
        lines += _rows(FORETOLD, iter(foretold))
    models = [(v, line) for v in verdicts for line in v.body if line.startswith("modelled")]
    if models:
        lines += ["", "The model of draft steps:", ""]
        lines += [f"- {verdict.subject}: {line}" for verdict, line in models]
    return lines


def _head(record: Record) -> Iterator[str]:
    run, identity = record.run, record.samples[0].identity
    starts = [s.duration_s for s in record.samples if not s.identity.workload_digest]
    runs = [s for s in record.samples if s.identity.workload_digest]
    began, ended = (
        datetime.fromisoformat(at)
        for at in (min(s.identity.started_at for s in runs), max(s.identity.started_at for s in runs))
    )
    void = sum(bool(s.void) for s in runs)
    slowed = record.slowed()
    yield f"### Run {run['run']}"
    yield ""
    yield (
        f"{str(run['started_at'])[:10]}, {run['host_class']}, SGLang {identity.sglang_version}, memory "
        f"{record.facts['bandwidth_gb_s']} GB/s as measured by a copy. {len(starts)} servers started together were "
        f"ready after {min(starts):.0f} to {max(starts):.0f} s; then {len(runs)} runs ({void} of them void and "
        f"repeated), warm-ups and traces took {(ended - began).total_seconds() / 60:.1f} minutes."
        + ("" if run["status"] == "complete" else f" The run was {run['status']} by its budget.")
    )
    if slowed:
        yield ""
        yield (
            f"Judged by runs that the gate called void, since the scheduler's CPU was slow in all of them: "
            f"{', '.join(slowed)}."
        )


def _costs(record: Record) -> Iterator[Sequence[str]]:
    for profile in record.profiles:
        for workload in record.workloads:
            measured = record.measured(profile.name, workload.name)
            cycles = record.cycles(profile.name, workload.name)
            if measured is None or cycles is None:
                continue
            held, whole_ms = record.floor(profile, workload), effective_ms(measured)
            yield (
                f"{workload.name}[{profile.name}]",
                str(cycles.launches_per_step),
                f"{cycles.kernels_outside:.0f}",
                *(f"{ms:.2f}" for ms in _parts(cycles)),
                f"{cycles.busy_ms:.2f}",
                "-" if whole_ms is None else f"{whole_ms:.2f}",
                "-" if whole_ms is None else f"{100 * (1 - cycles.busy_ms / whole_ms):.0f} %",
                "-" if held is None else f"{100 * held.fraction:.0f} %",
            )


def _foretold(record: Record) -> Iterator[Sequence[str]]:
    """Every profile's model at the draft steps of profiles that differ in these alone."""
    for workload in record.workloads:
        for one in record.profiles:
            model = record.model(one, workload)
            for other in record.profiles:
                asked, measured = other.speculation, record.measured(other.name, workload.name)
                alike = one is not other and replace(other, speculation=one.speculation).digest == one.digest
                if model is None or asked is None or measured is None or not alike or asked.steps is None:
                    continue
                if asked.attention_mode != (one.speculation and one.speculation.attention_mode):
                    continue
                cycle_ms, said_ms = fmean(measured.series("cycle_ms")), model.curve[asked.steps - 1].cycle_ms
                yield (
                    workload.name,
                    str(model.steps),
                    str(asked.steps),
                    f"{said_ms:.2f}",
                    f"{cycle_ms:.2f}",
                    f"{100 * (said_ms / cycle_ms - 1):+.1f} %",
                )


def _parts(cycles: Cycles) -> tuple[float, ...]:
    return (target_ms(cycles), *(cycles.parts_ms.get(part, 0.0) for part in (DRAFT, DRAFT_EXTEND, OTHER)))


def scatter(record: Record) -> Iterator[Sequence[str]]:
    """How runs of one launch scatter, and where their whole time goes."""
    for profile in record.profiles:
        for workload in record.workloads:
            measured = record.measured(profile.name, workload.name)
            if measured is None or len(measured.samples) < 2:
                continue
            rates = measured.series("decode_tok_s")
            found = whole_cycle(measured, workload.concurrency)
            yield (
                f"{workload.name}[{profile.name}]",
                str(len(rates)),
                f"{fmean(rates):.4g}",
                f"{100 * stdev(rates) / fmean(rates):.1f} %",
                *(
                    f"{found[key]:.2f}" if key in found else "-"
                    for key in ("whole_ms", "decode_ms", "log_ms")
                ),
            )


def _rows(headings: Sequence[str], rows: Iterator[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(headings)} |", "| --- |" + " ---: |" * (len(headings) - 1)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def text() -> str:
    """All tables, as Markdown."""
    lines: list[str] = []
    for record in records():
        lines += tables(record)
        lines += [
            "",
            "Runs of one launch, and a cycle as the whole run, the client and the engine's log have it:",
            "",
        ]
        headings = ("case", "runs", "decode tok/s", "sd", "whole run ms", "client ms", "log ms")
        lines += [*_rows(headings, scatter(record)), ""]
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    sys.exit(print_or_put(__doc__, PAGE, BEGIN, END, text))
