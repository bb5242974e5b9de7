"""Starts: the launches of one profile, those that became ready and those that did not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from tokgate.analysis.rate import Rate, rate
from tokgate.errors import EngineFault, Exited, Hang
from tokgate.gate.runs import Measured
from tokgate.gate.started import Started
from tokgate.gate.words import count, figure
from tokgate.server.launch import POLL_S
from tokgate.server.oddity import FIRST, only_first
from tokgate.server.timeline import Capture, label
from tokgate.verdict import Kind, Verdict


@dataclass(frozen=True, slots=True)
class Starts:
    """Launches of one profile, one after the other.

    Attributes:
        good: those that became ready, in order.
        faults: number of the launch, from 1 -> why it did not become ready.
    """

    good: tuple[Started, ...]
    faults: Mapping[int, EngineFault]

    @property
    def number(self) -> int:
        """How many launches there were."""
        return len(self.good) + len(self.faults)

    @property
    def last_failed(self) -> bool:
        """Whether the last launch left no server."""
        return self.number in self.faults

    @property
    def measured(self) -> Measured:
        """Start-up times of the good launches, as runs of a workload."""
        return Measured(tuple(s.sample for s in self.good), (), tuple(s.file for s in self.good))

    @property
    def fault(self) -> EngineFault | None:
        """What the launches that failed amount to; the fault itself where there was one launch."""
        if not self.faults:
            return None
        faults = list(self.faults.values())
        if self.number == 1:
            return faults[0]
        hung = [fault for fault in faults if isinstance(fault, Hang)]
        others = [fault for fault in faults if not isinstance(fault, Hang)]
        said = [self._share(hung, "hung")] if hung else []
        said += [self._share(others, "failed")] if others else []
        details = [f"start {n}: {fault.headline}" for n, fault in self.faults.items()]
        worst = (hung or others)[0]
        details += [f"of the first: {line}" for line in worst.details]
        facts = {
            "profile": worst.profile,
            "phase": worst.phase,
            "last_log_line": worst.last_log_line,
            "files": [path for fault in faults for path in fault.files],
        }
        headline = "; ".join(said)
        if isinstance(worst, Hang):
            return Hang(
                headline,
                details,
                waited_s=worst.waited_s,
                limit_s=worst.limit_s,
                usual_s=worst.usual_s,
                **facts,  # type: ignore[arg-type]
            )
        return (Exited if isinstance(worst, Exited) else EngineFault)(headline, details, **facts)  # type: ignore[arg-type]

    def rate(self) -> Rate:
        """Share of launches that hung, with its interval."""
        return rate(sum(isinstance(f, Hang) for f in self.faults.values()), self.number)

    def unjudged(self, metric: str, limit: float, recorded: Sequence[float]) -> tuple[Kind, str] | None:
        """Why a phase's seconds cannot be held against a baseline, if they cannot.

        Args:
            limit: the change that fails, as a fraction.
            recorded: the stored baseline's seconds of this phase; empty without one.
        """
        runs = self.measured.series(metric)
        if not runs:
            if recorded:
                return None
            return Kind.NOT_APPLICABLE, f"{metric}: the start of this profile has no such phase"
        if recorded and min(recorded) <= 0:
            return Kind.VACUOUS, (
                f"{metric}: {figure(fmean(runs))} s: so short that a start of the stored baseline showed none of it"
            )
        if fmean(runs) * limit < POLL_S or min(runs) <= 0:
            return Kind.VACUOUS, (
                f"{metric}: {figure(fmean(runs))} s: a change by {100 * limit:g} % is less than the "
                f"{POLL_S:g} s by which phases are told apart"
            )
        return None

    def _share(self, faults: Sequence[EngineFault], word: str) -> str:
        phases = Counter(label(fault.phase) for fault in faults)
        where = ", ".join(f"{name} ({n})" if len(phases) > 1 else name for name, n in phases.most_common())
        share = rate(len(faults), self.number)
        return f"{len(faults)} of {self.number} starts {word} at {where} ({share.text()})"


def verdict(starts: Starts) -> Verdict:
    """PASS of launches that all became ready: each generated as many tokens as were asked.

    Raises:
        EngineFault: :attr:`Starts.fault`, when one of them did not.
    """
    if starts.fault is not None:
        raise starts.fault
    first = starts.good[0]
    metrics = first.sample.metrics
    seconds = {name: value for name, value in metrics.items() if name.endswith("_s") and name != "startup_s"}
    phases = {name.removesuffix("_s"): value for name, value in seconds.items()}
    slowest = sorted(phases, key=lambda name: -phases[name])[:3]
    headline = (
        f"ready and generating after {figure(metrics['startup_s'])} s "
        f"({', '.join(f'{name} {figure(phases[name])} s' for name in slowest)})"
    )
    evidence: dict[str, object] = {}
    if starts.number > 1:
        share = starts.rate()
        headline = f"none of {starts.number} starts hung ({share.text()}); {headline}"
        evidence["hang_rate"] = {"events": 0, "trials": share.trials, "low": share.low, "high": share.high}
    flags = [count(len(first.odd_captures), "odd rank")] if first.odd_captures else []
    flags += [count(len(first.overrides), "silent override")] if first.overrides else []
    return Verdict(
        Kind.PASS,
        f"startup[{first.sample.identity.profile}]",
        "; ".join((headline, *flags)),
        body=_body(first),
        files=tuple(str(started.file) for started in starts.good[:3]),
        evidence={
            "workload": "startup",
            "profile": first.sample.identity.profile,
            "metric": "readiness",
            "unit": "s",
            "now": metrics["startup_s"],
            "phases_s": phases,
            "odd_captures": list(first.odd_captures),
            "overrides": list(first.overrides),
            "captures": [
                {
                    "kind": c.kind,
                    "rank": c.rank,
                    "seconds": c.seconds,
                    "gb": c.gb,
                    "available_gb": c.available_gb,
                    "begun_s": c.begun_s,
                }
                for c in _by_rank(first.captures)
            ],
            "environments": {name: dict(values) for name, values in first.environments.items()},
            "variables": [asdict(item) for item in first.variables],
            "libraries": {name: dict(values) for name, values in first.libraries.items()},
            "ranks": first.ranks,
            "nccl_version": first.nccl_version,
            **evidence,
        },
    )


def _body(started: Started) -> tuple[str, ...]:
    """Odd ranks, overrides, captures by rank, NCCL and the environment that the processes really have."""
    lines = [f"odd rank: {line}" for line in started.odd_captures]
    lines += [f"silent override: {line}" for line in started.overrides]
    lines += _rank_0_alone(started)
    lines += [
        f"{c.kind} graph capture{f' on {c.rank}' if c.rank else ''}: {_given(c.seconds, 's')}, "
        f"{_given(c.gb, 'GB')}, {_given(c.available_gb, 'GB')} left"
        for c in _by_rank(started.captures)
    ]
    lines.append(f"NCCL {started.nccl_version}" if started.nccl_version else "NCCL: no version in the log")
    lines += _libraries(started)
    lines += _environment(started)
    return tuple(lines)


def _rank_0_alone(started: Started) -> list[str]:
    """Drafts that every rank captures and only rank 0 prints."""
    rows: dict[str, dict[str, Capture]] = {}
    for capture in started.captures:
        rows.setdefault(capture.kind, {})[capture.rank] = capture
    kinds = [kind for kind, row in rows.items() if started.ranks > 1 and only_first(kind, row)]
    if not kinds:
        return []
    return [f"{' and '.join(kinds)} graph capture: printed by {FIRST} alone, as SGLang does from 0.5.12 on"]


def _libraries(started: Started) -> list[str]:
    return [
        f"loaded by {who}: {', '.join(f'{name} {version}' for name, version in versions)}"
        for versions, who in _alike(started.libraries).items()
    ]


def _environment(started: Started) -> list[str]:
    if not started.environments:
        return ["environment: no process of the engine may be read here"]
    everywhere = [str(item) for item in started.variables if not item.workers]
    lines = [f"environment of every worker: {', '.join(everywhere) or 'nothing of note'}"]
    return lines + [
        f"environment differs: {item} on {', '.join(item.workers)}"
        for item in started.variables
        if item.workers
    ]


def _alike(by_process: Mapping[str, Mapping[str, str]]) -> dict[tuple[tuple[str, str], ...], str]:
    """What processes have -> who has it; ``every process`` where all have the same."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, values in by_process.items():
        found.setdefault(tuple(values.items()), []).append(name)
    every = len(found) == 1 and len(by_process) > 1
    return {values: "every process" if every else ", ".join(names) for values, names in found.items()}


def _by_rank(captures: Sequence[Capture]) -> list[Capture]:
    """Kinds in the order in which they began, TP2 before TP10."""
    kinds = list(dict.fromkeys(c.kind for c in captures))
    return sorted(captures, key=lambda c: (kinds.index(c.kind), len(c.rank), c.rank))


def _given(value: float | None, unit: str) -> str:
    return f"{unit} not given" if value is None else f"{value:g} {unit}"
