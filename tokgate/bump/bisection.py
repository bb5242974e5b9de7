"""Bisection: ends verified, then versions halved, every finding kept so that it goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokgate.analysis.percent import percent_text
from tokgate.bump.search import Found, search
from tokgate.bump.steps import FAILURE, OutOfBudget, Prober, Sought, Step, limit_of_steps
from tokgate.errors import SampleFault, UsageFault
from tokgate.gate.words import count
from tokgate.load.sample import write_json

STEPS = "steps.json"


@dataclass(frozen=True, slots=True)
class Result:
    """A bisection as it stands.

    Attributes:
        versions: in order, ends included.
        steps: in the order in which they were judged.
        limit: the change that steps told from none, as a fraction.
        found: ``None`` when it did not come to an end.
        stopped: why it did not, one line.
    """

    versions: tuple[str, ...]
    steps: tuple[Step, ...]
    limit: float
    found: Found | None
    stopped: str = ""

    @property
    def seconds(self) -> float:
        """GPU seconds of all steps."""
        return sum(step.seconds for step in self.steps)

    @property
    def blocks(self) -> int:
        """Blocks of all steps."""
        return sum(step.blocks for step in self.steps)


class Bisection:
    """Halves a row of versions.

    Args:
        versions: in order; the first should be good, the last bad, which is verified.
        sought: what is looked for.
        prober: judges versions.
        folder: findings are kept there; ``None`` keeps nothing.
        say: told of each step.

    Raises:
        UsageFault: fewer than two versions, or the folder holds another bisection.
        SampleFault: what the folder holds cannot be read.
    """

    def __init__(
        self,
        versions: Sequence[str],
        sought: Sought,
        prober: Prober,
        folder: Path | None,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        if len(versions) < 2:
            raise UsageFault("a bisection needs a good and a bad version")
        self._versions = tuple(versions)
        self._sought = sought
        self._prober = prober
        self._folder = folder
        self._say = say
        self._known: dict[str, Step] = {}
        self._asked: list[Step] = []
        self._read()

    def run(self) -> Result:
        """Verify the ends, then search.

        Raises:
            TokgateError: the good end failed, or the host is unfit; what was found before is kept.
        """
        limit = self._sought.limit
        try:
            wrong = self._ends()
            if wrong:
                return self._result(limit, None, wrong)
            change = self._asked[-1].change_percent
            if self._sought.metric != FAILURE and change is not None:
                limit = limit_of_steps(change / 100, self._sought.better, limit)
                self._say(f"steps tell a change of {percent_text(limit)} from none")
            found = search(self._versions, lambda version: self._judge(version, limit).finding)
        except OutOfBudget:
            return self._result(limit, None, "the budget is spent")
        return self._result(limit, found, "")

    def _ends(self) -> str:
        """Why the ends do not differ as is claimed; empty when they do. The bad end is the last step asked."""
        good, bad = self._versions[0], self._versions[-1]
        if self._sought.metric == FAILURE:
            step = self._judge(good, self._sought.limit)
            if step.finding != "good":
                return f"the good end {good} is not good: {step.why}"
        step = self._judge(bad, self._sought.limit)
        if step.finding == "bad":
            return ""
        if step.finding == "skip":
            return f"the bad end {bad} cannot be judged: {step.why}"
        return f"the bad end {bad} is not bad on this machine today: {step.why}"

    def _judge(self, version: str, limit: float) -> Step:
        step = self._known.get(version)
        if step is None or self._may_go_on(step):
            step = self._prober.probe(version, limit)
            self._known[version] = step
            self._write()
        self._asked.append(step)
        self._say(
            f"{step.finding:<4} {version}: {step.why} "
            f"({count(step.blocks, 'block')}, {step.seconds / 60:.1f} GPU minutes)"
        )
        return step

    def _may_go_on(self, step: Step) -> bool:
        """Whether a step was undecided after all its blocks and more are allowed now."""
        undecided = step.finding == "skip" and step.change_percent is not None
        return undecided and step.blocks < self._sought.blocks_max

    def _result(self, limit: float, found: Found | None, stopped: str) -> Result:
        return Result(self._versions, tuple(self._asked), limit, found, stopped)

    def _write(self) -> None:
        if self._folder is not None:
            write_json(
                self._folder / STEPS,
                {
                    "versions": list(self._versions),
                    "sought": self._sought.facts(),
                    "steps": [step.to_json() for step in self._known.values()],
                },
            )

    def _read(self) -> None:
        path = None if self._folder is None else self._folder / STEPS
        if path is None or not path.is_file():
            return
        try:
            data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            versions, sought = tuple(data["versions"]), dict(data["sought"])
            steps = [_step(item) for item in data["steps"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SampleFault(f"{path}: {type(error).__name__}: {error}") from error
        asked = {"versions": self._versions, **self._sought.facts()}
        found = {"versions": versions, **sought}
        differing = [
            f"{key}: {_words(found.get(key))} there, {_words(asked.get(key))} asked"
            for key in {**asked, **found}
            if found.get(key) != asked.get(key)
        ]
        if differing:
            raise UsageFault(
                f"{path} is of another bisection", [*differing, "leave out --resume to begin anew"]
            )
        self._known = {step.version: step for step in steps}


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _step(data: Mapping[str, Any]) -> Step:
    step = Step(**data)
    if step.interval_percent is None:
        return step
    low, high = step.interval_percent
    return replace(step, interval_percent=(float(low), float(high)))
