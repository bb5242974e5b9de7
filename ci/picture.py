"""Remake docs/gate.svg: the end of a real run of the emulated gate, as a terminal shows it.

python ci/picture.py RESULTS_FOLDER     (made by: tokgate gate -m emulated)
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parents[1]))

from tokgate.gate.results import find_run, read_verdicts
from tokgate.report.terminal import summary_lines
from tokgate.verdict import Kind

ROOT = Path(__file__).parents[1]
WIDTH = 112


def main(results: str) -> None:
    """Draw the table of a run and its first NET_LOSS."""
    folder = find_run(Path(results), "latest")
    verdicts = read_verdicts(folder)
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text("$ bash ci/gate.sh", style="bold"))
    shown = Path("results") / folder.name
    for line in summary_lines(verdicts, not_applicable={}, folder=shown, width=WIDTH, color=True):
        console.print(Text.from_ansi(line), overflow="ellipsis", no_wrap=True)
    loss = next(verdict for verdict in verdicts if verdict.kind is Kind.NET_LOSS)
    console.print()
    first, *rest = [line for line in loss.text().splitlines() if not line.startswith("  file:")]
    console.print(Text(first, style="bold red"))
    for line in rest:
        console.print(Text(line))
    (ROOT / "docs" / "gate.svg").write_text(console.export_svg(title="tokgate"), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
