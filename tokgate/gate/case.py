"""A case under judgement: what all its verdicts have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from tokgate.analysis.voids import SOFT_CAUSES
from tokgate.gate.runs import Measured
from tokgate.gate.words import count
from tokgate.load.sample import Identity
from tokgate.verdict import Kind, Verdict


class JudgedCase:
    """One metric of a workload on a profile.

    Args:
        measured: its runs.
        metric, unit: what is judged.
        runs: the metric's value of every run that has it.
    """

    SHOWN_FILES = 3

    def __init__(self, measured: Measured, metric: str, unit: str, runs: Sequence[float]) -> None:
        self.metric = metric
        self.runs = runs
        self._identity: Identity = measured.samples[0].identity
        self._files = tuple(str(path) for path in measured.files[: self.SHOWN_FILES])
        self._launches = {sample.identity.launch for sample in measured.samples}
        self._notes = _contention(measured)
        self._slowed = fmean(any(a.cause in SOFT_CAUSES for a in s.advisory) for s in measured.samples)
        self._evidence: Mapping[str, object] = {
            "workload": self._identity.workload,
            "profile": self._identity.profile,
            "metric": metric,
            "unit": unit,
            "runs": list(runs),
            "now": fmean(runs) if runs else None,
        }

    @property
    def slowed(self) -> float:
        """Share of the runs whose scheduler had a slow CPU for which the GPU waited."""
        return self._slowed

    @property
    def launches(self) -> str:
        """``one launch``, ``10 launches``."""
        number = len(self._launches)
        return "one launch" if number == 1 else f"{number} launches"

    def verdict(
        self,
        kind: Kind,
        headline: str,
        body: Sequence[str] = (),
        *,
        next_command: str | None = None,
        figures: Mapping[str, object] | None = None,
    ) -> Verdict:
        """A verdict on this case; ``figures`` are added to the evidence that all of them carry."""
        return Verdict(
            kind,
            f"{self._identity.workload}[{self._identity.profile}]",
            headline,
            body=(*body, *self._notes),
            next_command=next_command,
            files=self._files,
            evidence={**self._evidence, **(figures or {})},
        )


def _contention(measured: Measured) -> list[str]:
    """What a reader must know of the host during these runs."""
    notes = []
    if measured.void:
        reasons = sorted({void.cause for sample in measured.void for void in sample.void})
        notes.append(f"{count(len(measured.void), 'void run')} repeated: {', '.join(reasons)}")
    advised = [sample for sample in measured.samples if sample.advisory]
    if advised:
        worst = advised[0].advisory[0].message
        notes.append(
            f"{len(advised)} of {len(measured.samples)} runs under contention, for instance: {worst}"
        )
    return notes
