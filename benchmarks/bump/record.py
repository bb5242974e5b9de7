"""What bumps on the H200 said, from the records that are kept, as the table of docs/explanation/bump.md.

    python -m benchmarks.bump.record [--write]

A record is a ``summary.json`` of :mod:`benchmarks.bump.h200` or the ``report.json`` of a ``tokgate bump``. It holds the
runs from which every verdict over blocks is judged again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.page import put
from tokgate.analysis.blocks import differences, pair
from tokgate.analysis.decision import Decision
from tokgate.analysis.looks import Plan
from tokgate.analysis.sequential import judge

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "tests" / "assets" / "h200-bump"
DOCUMENT = ROOT / "docs" / "explanation" / "bump.md"
BEGIN, END = "<!-- benchmarks.bump.record: begin -->", "<!-- benchmarks.bump.record: end -->"
PURPOSE = {
    "new": "{old} -> {new}",
    "again": "{old} against itself",
    "slow": "{old}, planted {delay}",
    "slightly": "{old}, planted {delay}",
}


@dataclass(frozen=True, slots=True)
class Bump:
    """One recorded bump.

    Attributes:
        name: of the record's file, and of the comparison in it where there are several.
        what: what was compared, in words.
        right: kinds of the speed verdict that are right; empty where nothing is known beforehand.
        detectable_percent: said before anything was measured; ``None`` where it was not asked.
        report: as ``report.json`` has it.
    """

    name: str
    what: str
    right: tuple[str, ...]
    detectable_percent: float | None
    report: Mapping[str, Any]

    @property
    def verdicts(self) -> list[Mapping[str, Any]]:
        return list(self.report["verdicts"])

    def over_blocks(self) -> list[Mapping[str, Any]]:
        """Verdicts that hold the runs from which they were judged."""
        return [verdict for verdict in self.verdicts if verdict["evidence"].get("old_runs")]


def bumps(folder: Path = RECORDS) -> Iterator[Bump]:
    """Every bump of every record."""
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        if "comparisons" not in data:
            yield Bump(path.stem, f"{data['old']} -> {data['new']}", (), None, data)
            continue
        versions = next(item["report"] for item in data["comparisons"] if item["name"] == "new")
        for item in data["comparisons"]:
            delay = item["delay"]
            told = "" if delay is None else f"{delay['ms']:g} ms a step on the {delay['on'].upper()}"
            what = PURPOSE[item["name"]].format(old=versions["old"], new=versions["new"], delay=told)
            right = () if item["name"] == "new" else tuple(item["right"])
            yield Bump(
                f"{path.stem}/{item['name']}",
                what,
                right,
                item["detectable_beforehand_percent"],
                item["report"],
            )


def judged_again(verdict: Mapping[str, Any], facts: Mapping[str, Any]) -> Decision:
    """The decision on a verdict's own runs, block by block as they came: the first that decides stands."""
    told = verdict["evidence"]
    plan = Plan(
        told["limit_percent"] / 100, told["better"], told["alpha"], facts["beta"], facts["blocks_max"]
    )
    found = differences(pair(told["old_runs"], told["new_runs"], plan.better))
    decision = judge(found[:1], plan)
    for n in range(2, len(found) + 1):
        if decision.kind != "INCONCLUSIVE":
            break
        decision = judge(found[:n], plan)
    return decision


def page(folder: Path = RECORDS) -> str:
    """The table as Markdown."""
    lines = [
        "Made by `python -m benchmarks.bump.record` from `tests/assets/h200-bump/`; "
        "tests judge each verdict again from its runs.",
        "",
        "| compared | case | old | new | change (95 % CI) | blocks | found beforehand from | verdict |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for bump in bumps(folder):
        foreseen = "-" if bump.detectable_percent is None else f"-{bump.detectable_percent:.0f} %"
        for verdict in bump.verdicts:
            told = verdict["evidence"]
            if told.get("metric") in ("output_tok_s", "accept_length"):
                of_speed = told["metric"] == "output_tok_s"
                lines.append(
                    f"| {bump.what} | {verdict['subject']} {told['metric']} | {_figure(told.get('reference'))} "
                    f"| {_figure(told.get('now'))} | {_change(told)} | {told.get('blocks', '-')} "
                    f"| {foreseen if of_speed else '-'} | {verdict['kind']} |"
                )
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _change(told: Mapping[str, Any]) -> str:
    change, interval = told.get("change_percent"), told.get("interval_percent")
    if change is None:
        return "-"
    text = f"{change:+.1f} %"
    return text if interval is None else f"{text} ({interval[0]:+.1f}..{interval[1]:+.1f})"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"into {DOCUMENT.relative_to(ROOT)}")
    asked = parser.parse_args()
    text = page()
    print(text)
    if asked.write:
        put(DOCUMENT, BEGIN, END, text)


if __name__ == "__main__":
    main()
