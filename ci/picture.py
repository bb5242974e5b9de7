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
from tokgate.report.rows import counts
from tokgate.report.terminal import table
from tokgate.verdict import Kind

SUBJECT = "chat-bs1[eagle3-graphs]"
WIDTH = 132


def main(results: str) -> None:
    """Draw a run's table and its NET_LOSS of :data:`SUBJECT`."""
    folder = find_run(Path(results), "latest")
    verdicts = read_verdicts(folder)
    loss = next(v for v in verdicts if v.kind is Kind.NET_LOSS and v.subject == SUBJECT)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    console.print(Text("$ bash ci/gate.sh", style="bold"))
    console.print(Text(loss.line, style="bold red"))
    for line in loss.body:
        console.print(Text(f"  {line}"))
    console.print()
    console.print(table(verdicts))
    console.print(Text(counts(verdicts)))
    picture = Path(__file__).parents[1] / "docs" / "gate.svg"
    picture.write_text(console.export_svg(title="tokgate"), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
