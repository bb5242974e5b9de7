"""The log of a bisection as Markdown: what was found, then every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One step; figures as text, ``-`` where there is none."""

    version: str
    finding: str
    change: str
    blocks: int
    minutes: float
    why: str


@dataclass(frozen=True, slots=True)
class Stage:
    """Releases, or commits.

    Attributes:
        what: ``releases`` or ``commits``.
        versions: in order.
        answer: what was found, or why nothing was, one line.
        rows: in the order in which they were judged.
    """

    what: str
    versions: Sequence[str]
    answer: str
    rows: Sequence[Row]


def log(title: str, header: Sequence[str], stages: Sequence[Stage], again: str) -> str:
    """The page."""
    lines = [f"# {title}", "", *(f"**{stage.what}: {stage.answer}**  " for stage in stages), ""]
    lines += [f"{line}  " for line in header]
    for stage in stages:
        total = sum(row.minutes for row in stage.rows)
        blocks = sum(row.blocks for row in stage.rows)
        lines += [
            "",
            f"## {stage.what.capitalize()}",
            "",
            "| step | version | finding | change (95 % CI) | blocks | GPU minutes | why |",
            "| ---: | --- | --- | ---: | ---: | ---: | --- |",
        ]
        lines += [
            f"| {number} | {row.version} | {row.finding} | {row.change} | {row.blocks} | {row.minutes:.1f} "
            f"| {row.why.replace('|', '/')} |"
            for number, row in enumerate(stage.rows, start=1)
        ]
        lines += ["", f"{len(stage.rows)} steps, {blocks} blocks, {total:.1f} GPU minutes.", ""]
        lines.append(f"In order: {', '.join(stage.versions)}")
    if again:
        lines += ["", f"go on: `{again}`"]
    return "\n".join([*lines, ""])
