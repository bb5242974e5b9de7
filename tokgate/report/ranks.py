"""What every rank of a server did and has: captures, versions loaded, variables and who gave them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokgate.server.oddity import FIRST
from tokgate.server.truth import Variable
from tokgate.verdict import Verdict

_RANK = re.compile(r"^sglang::scheduler(?:_(\w+))? \(")
NOT_PRINTED = f"not printed ({FIRST} alone does)"
ABSENT = "none in the log"


@dataclass(frozen=True, slots=True)
class RankTable:
    """The ranks of one start.

    Attributes:
        profile: whose server.
        headings: ``rank``, then kinds of capture, then libraries.
        rows: one a rank, as many cells as headings.
        odd: what sets a rank apart, in words.
        environment: variables of the workers, in words; empty when they have none of note.
        nccl: NCCL's version by the log, where the processes do not show which one they loaded.
    """

    profile: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    odd: tuple[str, ...]
    environment: tuple[str, ...]
    nccl: str | None = None

    @property
    def telling(self) -> bool:
        """Whether it belongs on a terminal: several ranks, or an odd one."""
        return len(self.rows) > 1 or bool(self.odd)


def rank_tables(verdicts: Iterable[Verdict]) -> list[RankTable]:
    """Tables of all starts whose verdict says what its processes have."""
    return [_table(v.evidence) for v in verdicts if "variables" in v.evidence and "captures" in v.evidence]


def lines(table: RankTable) -> list[str]:
    """The table as text, columns aligned."""
    cells = [table.headings, *table.rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.headings))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return [f"ranks of {table.profile}:", *(f"  {line.rstrip()}" for line in text), *_notes(table)]


def markdown(table: RankTable) -> list[str]:
    """The table in Markdown."""
    return [
        f"### {table.profile}",
        "",
        *(f"| {' | '.join(row)} |" for row in (table.headings, ("---",) * len(table.headings), *table.rows)),
        "",
        *(f"- {line.strip()}" for line in _notes(table)),
        "",
    ]


def _notes(table: RankTable) -> list[str]:
    environment = ", ".join(table.environment) or "nothing of note"
    said = [] if table.nccl is None else [f"  NCCL {table.nccl}, as the log says"]
    return [*(f"  odd rank: {line}" for line in table.odd), *said, f"  environment: {environment}"]


def _table(evidence: Mapping[str, Any]) -> RankTable:
    captures = {(c["kind"], c["rank"]): c for c in evidence["captures"]}
    kinds = list(dict.fromkeys(kind for kind, _ in captures))
    loaded = {_rank(name): own for name, own in evidence["libraries"].items() if _RANK.match(name)}
    libraries = list(dict.fromkeys(name for own in loaded.values() for name in own))
    ranks = _ranks(evidence, captures, loaded)
    return RankTable(
        profile=str(evidence["profile"]),
        headings=("rank", *kinds, *libraries),
        rows=tuple(
            (
                rank or "only one",
                *(_capture(captures, kind, rank) for kind in kinds),
                *(loaded.get(rank, {}).get(name, "not loaded") for name in libraries),
            )
            for rank in ranks
        ),
        odd=tuple(evidence["odd_captures"]),
        environment=tuple(_variable(item) for item in evidence["variables"]),
        nccl=None if "NCCL" in libraries else evidence.get("nccl_version"),
    )


def _ranks(
    evidence: Mapping[str, Any], captures: Mapping[tuple[str, str], Any], loaded: Mapping[str, Any]
) -> list[str]:
    number = int(evidence.get("ranks", 1))
    if number > 1:
        return [f"TP{rank}" for rank in range(number)]
    return sorted({rank for _, rank in captures} | set(loaded)) or [""]


def _rank(name: str) -> str:
    match = _RANK.match(name)
    return (match[1] or "") if match else name


def _capture(captures: Mapping[tuple[str, str], Mapping[str, Any]], kind: str, rank: str) -> str:
    own = captures.get((kind, rank))
    if own is None:
        alone = kind.startswith("draft") and [r for k, r in captures if k == kind] == [FIRST]
        return NOT_PRINTED if alone else ABSENT
    if own["seconds"] is None:
        return "did not end"
    size = "" if own["gb"] is None else f", {own['gb']:g} GB"
    return f"{own['seconds']:g} s{size}"


def _variable(item: Mapping[str, Any]) -> str:
    found = Variable(**{**item, "workers": tuple(item["workers"])})
    return f"{found} on {', '.join(found.workers)}" if found.workers else str(found)
