"""The page of what ``benchmarks.tensor_parallel`` saw, from the folder it wrote.

    python -m benchmarks.tensor_parallel.table OUT [--write]

Prints Markdown; with ``--write`` it takes the place of what stands between the marks of the page.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "tensor_parallel.md"
BEGIN, END = "<!-- tensor parallel: begin -->", "<!-- tensor parallel: end -->"
WORDS = {True: "seen", False: "**not seen**", None: "left out"}
# What differs from machine to machine and tells nobody anything.
_PRIVATE = (
    (r" \(\d+\)", ""),
    (r"(pid|of) \d+ ", r"\1 "),
    (r"GPU-[0-9a-f-]{8,}", "GPU-..."),
    (r"(?<![\w.])/\S*/", ""),
)
_LONGEST = 150


def page(out: Path) -> str:
    """The tables in Markdown: where it ran, captures by rank, and everything that was asked for."""
    host = json.loads((out / "host.json").read_text(encoding="utf-8"))
    engine = yaml.safe_load((out / "gpu" / "engine.yaml").read_text(encoding="utf-8"))
    seen = json.loads((out / "seen.json").read_text(encoding="utf-8"))
    lines = [
        f"Engine: {engine['kind']}, SGLang {engine['version']}. {_where(host)} "
        f"{sum(ok is True for _, _, ok, _ in seen)} of {len(seen)} seen.",
        "",
    ]
    look = out / "look.json"
    if look.is_file():
        lines += _captures(json.loads(look.read_text(encoding="utf-8"))["captures"])
    lines += ["| part | asked | | what it said |", "|---|---|---|---|"]
    lines += [f"| {part} | {what} | {WORDS[ok]} | {_said(said)} |" for part, what, ok, said in seen]
    return "\n".join(lines)


def _where(host: dict[str, Any]) -> str:
    if isinstance(host["gpus"], str):
        return f"No GPU ({host['gpus']})."
    links = ", ".join(f"{pair}: {link}" for pair, link in host["links"].items())
    return f"GPUs: {', '.join(host['gpus'])} ({links}), driver {host['driver']}, {host['cpus']} CPUs."


def _captures(captures: list[dict[str, Any]]) -> list[str]:
    lines = ["| capture | rank | begun, s after the launch | s | GB |", "|---|---|---:|---:|---:|"]
    for own in sorted(captures, key=lambda item: (item["begun_s"] or 0.0, item["rank"])):
        begun = "-" if own["begun_s"] is None else f"{own['begun_s']:.2f}"
        lines.append(f"| {own['kind']} | {own['rank']} | {begun} | {own['seconds']} | {own['gb']} |")
    return [*lines, ""]


def _said(text: str) -> str:
    for pattern, word in _PRIVATE:
        text = re.sub(pattern, word, text)
    text = " ".join(text.replace("|", "/").replace("<", "&lt;").split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def write(text: str) -> None:
    """Replace what stands between the marks of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE} lacks the marks {BEGIN} and {END}")
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="what --out was")
    parser.add_argument("--write", action="store_true", help="put it into the documentation")
    options = parser.parse_args()
    text = page(options.out)
    print(text)
    if options.write:
        write(text)


if __name__ == "__main__":
    main()
