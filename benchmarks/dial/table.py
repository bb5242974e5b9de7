"""Results of ``benchmarks.dial`` as a table, from the files that it wrote.

    python -m benchmarks.dial.table [--write] [FOLDER]

The folder (by default benchmarks/dial/results) holds VERSION-LETTER.jsonl, one file a run. Those of one version
are taken together: a row that was run stands over one that was not. ``--write`` puts the table into
docs/explanation/synthetic_pair.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.page import put

RESULTS = Path(__file__).parent / "results"
DOCUMENT = Path(__file__).parents[2] / "docs" / "explanation" / "synthetic_pair.md"
BEGIN, END = "<!-- dial: begin -->", "<!-- dial: end -->"
COLUMNS = ("graphs prefill", "graphs decode", "eager prefill", "eager decode")

Rows = dict[str, Mapping[str, Any]]


def read(paths: Iterable[Path]) -> Rows:
    """Rows by name; one that was run stands over one that was not."""
    rows: Rows = {}
    for number, path in enumerate(paths, 1):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            # Each run has a parity of its own, of the servers that it had.
            name = f"parity of run {number}" if row["name"] == "parity" else row["name"]
            if name not in rows or was_run(row):
                rows[name] = row
    return rows


def was_run(row: Mapping[str, Any]) -> bool:
    """Whether there was time for it."""
    return not str(row["text"]).startswith(("NOT RUN", "NOT FINISHED", "no answers"))


def cell(row: Mapping[str, Any] | None) -> str:
    """Accept length over whole cycles, and how many prompts had exactly the predicted count."""
    if row is None or not was_run(row):
        return "not run"
    facts = row["facts"]
    if "accept_length" not in facts:
        return str(row["text"])
    text = f"{facts['accept_length']:.3f}; {facts['exact']} of {facts['requests'] - 1}"
    return text if row["good"] else f"{text}: {row['text'].split(';')[0]}"


def table(versions: Mapping[str, Rows]) -> str:
    """The table in Markdown, and under it what else was run."""
    lines = [
        f"| SGLang | dial | {' | '.join(COLUMNS)} |",
        f"|---|---:|{'---:|' * len(COLUMNS)}",
    ]
    for version, rows in versions.items():
        dials = sorted({name.split()[0] for name in rows if name.endswith(("prefill", "decode"))}, key=float)
        for dial in dials:
            cells = " | ".join(cell(rows.get(f"{dial} {column}")) for column in COLUMNS)
            lines.append(f"| {version} | {dial} | {cells} |")
    lines.append("")
    for version, rows in versions.items():
        for name, row in rows.items():
            if not name.endswith(("prefill", "decode")) and name != "pair made":
                seconds = f", {row['seconds']:.0f} s" if row["seconds"] >= 1 else ""
                lines.append(f"- {version}, {name}{seconds}: {row['text'] if was_run(row) else 'not run'}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--write", action="store_true", help="put the table into the documentation")
    options = parser.parse_args()
    files: dict[str, list[Path]] = {}
    for path in sorted(options.folder.glob("*.jsonl")):
        files.setdefault(path.stem.rpartition("-")[0], []).append(path)
    text = table({version: read(files[version]) for version in sorted(files, reverse=True)})
    print(text)
    if options.write:
        put(DOCUMENT, BEGIN, END, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
