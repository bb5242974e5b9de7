"""Bumps that the same blocks hold: the real one, its A/A control, and planted slow-downs; judged and recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.bump.planted import Delay
from tokgate.analysis.power import smallest_detectable
from tokgate.bump.campaign import Group
from tokgate.bump.outcome import report_of
from tokgate.bump.question import BumpAsk
from tokgate.bump.run import header, write_reports
from tokgate.bump.stack import Stack
from tokgate.gate.blocks.deciding import Deciding, Spent
from tokgate.gate.blocks.runner import BlockRunner
from tokgate.verdict import Verdict

SPEED = "output_tok_s"
RIGHT: Mapping[str, tuple[str, ...]] = {
    "again": ("PASS", "INCONCLUSIVE", "IMPROVED"),
    "slow": ("REGRESSION",),
    "slightly": ("INCONCLUSIVE", "REGRESSION"),
    "new": ("PASS", "IMPROVED", "INCONCLUSIVE", "REGRESSION"),
}
"""Purpose of the other arm -> kinds of its speed verdict that are right: an A/A must not alarm, a delay that blocks
find must be found, one that they do not find must not be called harmless."""

SUMMARY = "summary.json"
SAID = "tokgate: planted a delay"
"""What ``ci/delay`` writes into the log of a server that it delays."""


@dataclass
class Comparison:
    """One bump that the blocks hold. Satisfies :class:`tokgate.bump.campaign.Standing`.

    Attributes:
        name: what the other arm is for: a key of :data:`RIGHT`.
        delay: planted in each decode step of the other arm.
        logs: folder of the other arm's logs, which must say that the delay is there; ``None``: not looked for.
    """

    name: str
    ask: BumpAsk
    group: Group
    delay: Delay | None = None
    logs: Path | None = None
    spent: Spent | None = None
    faults: dict[str, Verdict] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def groups(self) -> list[Group]:
        return [self.group]

    def unplanted(self) -> list[str]:
        """Names of logs of delayed servers that do not say so: a delay that is not there proves nothing."""
        if self.logs is None or not self.delay:
            return []
        paths = sorted(self.logs.glob("*.log*"))
        if not paths:
            return [f"{self.logs}: no log"]
        return [path.name for path in paths if SAID not in path.read_text(encoding="utf-8", errors="replace")]


def foreseen(ask: BumpAsk, blocks: int, scatter: float) -> float | None:
    """The smallest loss of speed, as a fraction, that so many blocks find at a scatter: what
    ``tokgate bump --dry-run --assume-scatter-percent`` says."""
    plan = next(q.plan for q in ask.questions(ask.profiles[0].name) if q.metric == SPEED)
    return smallest_detectable(blocks, scatter, None, plan)


def deciding(
    runner: BlockRunner, ask: BumpAsk, names: Sequence[str], arms: Mapping[str, tuple[str, str]]
) -> Group:
    """The arms of one comparison, as a group of a bump.

    Args:
        names: profiles.
        arms: profile -> arm of the old version and arm of the other.
    """
    sides: dict[str, tuple[str, Any]] = {}
    for name in names:
        sides |= {arms[name][0]: (name, "old"), arms[name][1]: (name, "new")}
    found = {
        name: Deciding(runner, ask.questions(name), reference=arms[name][0], candidate=arms[name][1])
        for name in names
    }
    return Group(None, sides, runner, found)


def judge(
    comparisons: Sequence[Comparison],
    out: Path,
    stacks: tuple[Stack, Stack],
    *,
    host_class: str,
    blocks: int,
    scatter: float,
    seconds: float,
) -> tuple[list[str], bool]:
    """Write every report and the summary.

    Args:
        stacks: of the old and the new version.
        blocks: that were asked for.
        scatter: of a block's difference, assumed beforehand.
        seconds: spent.

    Returns:
        A table, and whether every speed verdict is right.
    """
    record: dict[str, Any] = {"seconds": round(seconds, 1), "blocks_asked": blocks, "comparisons": []}
    lines = [f"{'comparison':<10} {'verdict':<13} {'as it must':<10} what"]
    right = True
    for item in comparisons:
        item.spent = Spent("blocks", seconds, len(item.group.runner.blocks))
        pair = stacks if item.name == "new" else (stacks[0], stacks[0])
        report = report_of(item, header=header(item.ask, host_class, Path(item.name)), stacks=pair, again="")
        if item.name != "new":
            # The old version's servers hold its answers against the new one's, and are arms of every comparison.
            kept = [v for v in report.verdicts if v.evidence.get("metric") != "greedy parity"]
            report = replace(report, verdicts=kept)
        folder = out / item.name
        folder.mkdir(exist_ok=True)
        write_reports(folder, report)
        found = foreseen(item.ask, blocks, scatter)
        unplanted = item.unplanted()
        if unplanted:
            right = False
            lines.append(f"{item.name:<10} {'-':<13} {'NO':<10} no delay planted, by {', '.join(unplanted)}")
        record["comparisons"].append(
            {
                "name": item.name,
                "delay": None if item.delay is None else asdict(item.delay),
                "logs_without_delay": unplanted,
                "right": list(RIGHT[item.name]),
                "detectable_beforehand_percent": None if found is None else 100 * found,
                "assumed_scatter_percent": 100 * scatter,
                "report": without_paths(report.to_json()),
            }
        )
        for verdict in report.verdicts:
            judged = verdict.evidence.get("metric") == SPEED
            good = not judged or verdict.kind in RIGHT[item.name]
            right = right and good
            if judged or verdict.outcome == "failed":
                word = ("yes" if good else "NO") if judged else "-"
                lines.append(
                    f"{item.name:<10} {verdict.kind:<13} {word:<10} {verdict.subject} {verdict.headline}"
                )
    (out / SUMMARY).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return lines, right


def without_paths(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report as it can be kept: without the places of one machine."""
    verdicts = [{**verdict, "files": [], "next_command": None} for verdict in report["verdicts"]]
    header = [re.sub(r"results: [^;]+; ", "", line) for line in report["header"]]
    return {**report, "header": header, "verdicts": verdicts, "again": ""}


def speeds(record: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Every comparison of a summary with each of its speed verdicts."""
    for item in record["comparisons"]:
        for verdict in item["report"]["verdicts"]:
            if verdict["evidence"].get("metric") == SPEED:
                yield item, verdict
