"""``tokgate explain``: what an SGLang log says."""

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
from tokgate.sglang.log_scan import scan_file

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def explain(
    logs: Annotated[list[Path], typer.Argument(help="SGLang logs, plain or gzip")],
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
    html: Annotated[Path | None, typer.Option(help="write a page with plots there")] = None,
) -> None:
    """Print phases, captures, rates, accept length, faults; of two logs also what differs and break-even."""
    explained = [_explain(path, logs) for path in logs]
    records = [record for record, _ in explained]
    comparisons = [compare(records[0], other) for other in records[1:]]
    if html is not None:
        from tokgate.report.explain_html import page

        content = page(
            explained,
            [comparison_text(found) for found in comparisons],
            title=f"tokgate explain {records[0].name}",
        )
        try:
            html.write_text(content, encoding="utf-8")
        except OSError as error:
            raise ResultsUnwritable(f"cannot write {html}: {error.strerror}") from error
    if as_json:
        record = {
            "logs": [explanation_json(record, series) for record, series in explained],
            "comparisons": [comparison_json(found) for found in comparisons],
        }
        print(json.dumps(record, indent=2, default=str))
        return
    strange = [record.name for record in records if not is_log(record)]
    print("\n\n".join([*map(text, records), *map(comparison_text, comparisons)]))
    if html is not None:
        print(f"\npage written to {html}")
    if strange:
        raise UsageFault(f"not a log of SGLang: {', '.join(strange)}")


def _explain(path: Path, logs: list[Path]) -> tuple[Explanation, Series]:
    # Logs of the same name are told apart by their folder.
    shared = sum(other.name == path.name for other in logs) > 1
    explainer = Explainer(f"{path.parent.name}/{path.name}" if shared else path.name)
    explainer.take(scan_file(path))
    return explainer.result()
