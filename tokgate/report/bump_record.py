"""What a report of a bump shows, in any format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tokgate.analysis.percent import detectable_text
from tokgate.report.rows import counts
from tokgate.verdict import Kind, Verdict, exit_code

SPEED_OF = "speed_of_workload"
"""Key of the evidence: whether a verdict answers what a bump is asked, the speed of a workload."""
_ORDER = {kind: place for place, kind in enumerate(Kind)}
_SPOKEN = ("failed", "undecided", "green")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs between the versions; ``where`` is a profile, or empty for all.

    ``old`` or ``new`` is ``None`` where that side does not have it.
    """

    what: str
    old: str | None
    new: str | None
    where: str = ""


@dataclass(frozen=True, slots=True)
class BumpReport:
    """A bump as it stands.

    Attributes:
        old, new: SGLang's versions; equal ones are an A/A.
        header: what was run, on what, one line each.
        verdicts: all of them.
        blocks: measured so far.
        gpu_minutes: that they took.
        ended: why measuring ended.
        moved: packages that differ and can matter, then how many others, and what is not known.
        defaults: server arguments that resolved differently under the same profile.
        memory: what the servers say they use.
        remarks: what a reader must know, one line each.
        again: the command that goes on.
    """

    old: str
    new: str
    header: Sequence[str]
    verdicts: Sequence[Verdict]
    blocks: int
    gpu_minutes: float
    ended: str
    moved: Sequence[Difference] = ()
    moved_others: int = 0
    moved_unknown: Sequence[str] = ()
    defaults: Sequence[Difference] = ()
    memory: Sequence[Difference] = ()
    remarks: Sequence[str] = ()
    again: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """``SGLang 0.5.13.post1 -> 0.5.15.post1``."""
        if self.old == self.new:
            return f"SGLang {self.old} against itself (A/A)"
        return f"SGLang {self.old} -> {self.new}"

    @property
    def took(self) -> str:
        """``31.2 GPU minutes``; without a GPU they are minutes."""
        unit = "GPU minutes" if self.facts.get("engine_kind", "gpu") == "gpu" else "minutes"
        return f"{self.gpu_minutes:.1f} {unit}"

    @property
    def verdict(self) -> str:
        """The worst that was said, with its count; and of which profiles the speed was not decided at all."""
        worst = counts(self.verdicts).partition(",")[0] if self.verdicts else "no verdict"
        return (
            f"{worst}, no verdict on the speed of {', '.join(names)}" if (names := self.unanswered) else worst
        )

    @property
    def unanswered(self) -> list[str]:
        """Profiles whose speed was asked for, and every verdict on it is undecided."""
        asked: dict[str, list[bool]] = {}
        for verdict in self.verdicts:
            if verdict.evidence.get(SPEED_OF):
                profile = str(verdict.evidence.get("profile"))
                asked.setdefault(profile, []).append(verdict.outcome != "undecided")
        return [profile for profile, decided in asked.items() if not any(decided)]

    def exit_code(self, *, strict_inconclusive: bool = False) -> int:
        """As :func:`tokgate.verdict.exit_code`; and 3 where the speed of a profile was not decided at all.

        Equal answers and replayed graphs are green, and say nothing of what a bump is asked.
        """
        code = exit_code(self.verdicts, strict_inconclusive=strict_inconclusive)
        return 3 if code == 0 and self.unanswered else code

    def ordered(self) -> list[Verdict]:
        """Worst first, else in the order of the run."""
        return sorted(self.verdicts, key=lambda verdict: _ORDER[verdict.kind])

    def speed(self) -> list[Verdict]:
        """Verdicts over blocks, that have figures to plot."""
        return [verdict for verdict in self.verdicts if verdict.evidence.get("block_ratios")]

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        data = asdict(self)
        data["title"] = self.title
        return data


def blocks_text(report: BumpReport) -> str:
    """``1 block``, ``6 blocks``."""
    return f"{report.blocks} block{'' if report.blocks == 1 else 's'}"


def cells(verdict: Verdict) -> tuple[str, ...]:
    """One row: verdict, case, metric, old, new, change with interval, blocks, smallest detectable."""
    told = verdict.evidence
    unit = str(told.get("unit", ""))
    return (
        str(verdict.kind),
        verdict.subject,
        str(told.get("metric", "-")),
        _figure(told.get("reference"), unit),
        _figure(told.get("now"), unit),
        _change(verdict),
        str(told.get("blocks", "-")),
        _detectable(told.get("smallest_detectable_percent")),
    )


HEADINGS = ("verdict", "case", "metric", "old", "new", "change (95 % CI)", "blocks", "detectable")


def _change(verdict: Verdict) -> str:
    told = verdict.evidence
    change, interval = told.get("change_percent"), told.get("interval_percent")
    if not isinstance(change, (int, float)):
        return _short(verdict.headline)
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    text = f"{round(change, 1) + 0.0:+.1f} %"
    if isinstance(interval, (list, tuple)):
        text += f" ({interval[0]:+.1f}..{interval[1]:+.1f})"
    return text


def _short(text: str, width: int = 160) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _figure(value: object, unit: str) -> str:
    if not isinstance(value, (int, float)):
        return "-"
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {unit}".strip()


def _detectable(value: object) -> str:
    return detectable_text(value / 100) if isinstance(value, (int, float)) else "-"
