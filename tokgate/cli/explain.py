"""``tokgate explain``: what an SGLang log says, and where the time of a profiler trace goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tokgate.errors import ResultsUnwritable, UsageFault
from tokgate.report.explain_compare import compare, comparison_text
from tokgate.report.explain_json import comparison_json, explanation_json
from tokgate.report.explain_model import Explainer
from tokgate.report.explain_record import Explanation
from tokgate.report.explain_series import Series
from tokgate.report.explain_text import is_log, text
from tokgate.report.explain_traces import ExplainedTrace, Floor, explain_trace, rank_text
from tokgate.sglang.log_scan import check_readable, scan_file
from tokgate.trace.events import is_trace

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def explain(
    logs: Annotated[list[Path], typer.Argument(help="SGLang logs or profiler traces, plain or gzip")],
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
    html: Annotated[Path | None, typer.Option(help="write a page with plots there")] = None,
    target: Annotated[
        Path | None, typer.Option(help="traces: folder of the target model, for the roofline")
    ] = None,
    bandwidth_gb_s: Annotated[
        float | None, typer.Option(help="traces: memory bandwidth for the roofline, GB/s")
    ] = None,
    context_tokens: Annotated[
        int, typer.Option(help="traces: tokens of context in all requests together, for the roofline")
    ] = 0,
    effective_cycle_ms: Annotated[
        float | None,
        typer.Option(help="traces: cycle as measured (accept length / tok/s), whose rest is named"),
    ] = None,
) -> None:
    """Print phases, captures, rates, accept length, faults; of two logs also what differs and break-even.
    Of a profiler trace: parts of a step, gaps, graph launches, roofline."""
    for path in logs:
        check_readable(path)
    kinds = {path: is_trace(path) for path in logs}
    floor = _floor(target, bandwidth_gb_s, context_tokens, effective_cycle_ms, any(kinds.values()))
    explained = [_explain(path, logs) for path in logs if not kinds[path]]
    if effective_cycle_ms is None and len(explained) == 1:
        # A log and a trace of the same server: the log says how long a cycle takes without the profiler.
        effective_cycle_ms = _cycle_ms(explained[0][0])
    traces = [
        explain_trace(path, _name(path, logs), floor, effective_cycle_ms) for path in logs if kinds[path]
    ]
    records = [record for record, _ in explained]
    comparisons = [compare(records[0], other) for other in records[1:]]
    if html is not None:
        _write_page(html, explained, [comparison_text(found) for found in comparisons], traces)
    if as_json:
        record: dict[str, object] = {
            "logs": [explanation_json(record, series) for record, series in explained],
            "comparisons": [comparison_json(found) for found in comparisons],
            "traces": [each.json for each in traces],
        }
        print(json.dumps(record, indent=2, default=str))
    else:
        shown = [*map(text, records), *map(comparison_text, comparisons), *(each.text for each in traces)]
        print("\n\n".join([*shown, *filter(None, [rank_text(traces)])]))
        if html is not None:
            print(f"\npage written to {html}")
    # Whatever the form: a file that is no log is no success.
    if strange := [record.name for record in records if not is_log(record)]:
        raise UsageFault(f"not a log of SGLang: {', '.join(strange)}")


def _cycle_ms(record: Explanation) -> float | None:
    """Cycle with the fewest running requests of a log, ms; ``None`` when it shows no rate."""
    return min(((rate.running, rate.cycle_ms) for rate in record.rates), default=(0, None))[1]


def _floor(
    target: Path | None,
    bandwidth_gb_s: float | None,
    context_tokens: int,
    effective_cycle_ms: float | None,
    with_traces: bool,
) -> Floor | None:
    given = target is not None or bandwidth_gb_s is not None or effective_cycle_ms is not None
    if given and not with_traces:
        raise UsageFault(
            "--target, --bandwidth-gb-s and --effective-cycle-ms speak of a trace: none was given"
        )
    if (target is None) != (bandwidth_gb_s is None):
        raise UsageFault("the roofline needs both --target and --bandwidth-gb-s")
    for name, value in (("--bandwidth-gb-s", bandwidth_gb_s), ("--effective-cycle-ms", effective_cycle_ms)):
        if value is not None and not value > 0:
            raise UsageFault(f"{name} must be above 0, not {value:g}")
    if context_tokens < 0:
        raise UsageFault(f"--context-tokens must be 0 or more, not {context_tokens}")
    if target is None or bandwidth_gb_s is None:
        return None
    if not (target / "config.json").is_file():
        why = "it holds no config.json" if target.is_dir() else "no such folder"
        raise UsageFault(f"--target {target}: {why}; expected the folder of the target model")
    return Floor(target, bandwidth_gb_s * 1e9, context_tokens)


def _write_page(
    path: Path,
    explained: list[tuple[Explanation, Series]],
    comparisons: list[str],
    traces: list[ExplainedTrace],
) -> None:
    from tokgate.report.explain_html import page

    names = [*(record.name for record, _ in explained), *(each.name for each in traces)]
    content = page(explained, comparisons, title=f"tokgate explain {names[0]}", traces=traces)
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ResultsUnwritable(f"cannot write {path}: {error.strerror}") from error


def _name(path: Path, paths: list[Path]) -> str:
    """Files of the same name are told apart by their folder."""
    shared = sum(other.name == path.name for other in paths) > 1
    return f"{path.parent.name}/{path.name}" if shared else path.name


def _explain(path: Path, logs: list[Path]) -> tuple[Explanation, Series]:
    explainer = Explainer(_name(path, logs))
    explainer.take(scan_file(path))
    return explainer.result()
