"""Calibration: how much block differences scatter on a host class and profile when nothing changed.

Sessions of A/A blocks are stored with every run, so that the figures can be made again from the file, and
pooled. What measures a block is given by the caller; a session is saved after every block and taken up
again where it stopped.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field, ValidationError

from tokgate.analysis.blocks import Block, block
from tokgate.analysis.looks import ENOUGH_BLOCKS, History
from tokgate.analysis.values import Better
from tokgate.config.document import Section
from tokgate.errors import SampleFault

SCHEMA = 1
OLD_AFTER_DAYS = 30.0


@dataclass(frozen=True, slots=True)
class AABlock:
    """Runs of two launches of the same build, in the metric's unit."""

    first: tuple[float, ...]
    second: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """A/A blocks measured in one go. ``started_at`` is UTC, ISO 8601."""

    started_at: str
    blocks: tuple[AABlock, ...]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Everything known of one metric's scatter on one host class and profile.

    Attributes:
        host_class, profile, workload, metric: what it is of.
        unit, better: of the metric.
        sessions: oldest first.
    """

    host_class: str
    profile: str
    workload: str
    metric: str
    unit: str
    better: Better
    sessions: tuple[Session, ...] = ()

    def blocks(self) -> list[Block]:
        """All A/A blocks of all sessions.

        Raises:
            SampleFault: a block holds a value that cannot be a measurement.
        """
        return [block(item.first, item.second, self.better) for s in self.sessions for item in s.blocks]

    def history(self) -> History | None:
        """Pooled over sessions: s0 is the root mean square of all block differences.

        Returns:
            ``None`` without blocks, or when no two launches ever differed (no scatter to judge by).
        """
        found = self.blocks()
        if not found:
            return None
        s0 = math.sqrt(math.fsum(item.difference**2 for item in found) / len(found))
        return History(s0, len(found)) if s0 > 0 else None

    def age_days(self, now: datetime.datetime) -> float | None:
        """Days since the newest session; ``None`` without one.

        Args:
            now: with a time zone.

        Raises:
            SampleFault: a session's time is no ISO 8601 time with a zone.
        """
        if not self.sessions:
            return None
        return (now - max(_time(item.started_at) for item in self.sessions)).total_seconds() / 86400

    def remarks(self, now: datetime.datetime) -> tuple[str, ...]:
        """What the gate prints when the calibration is missing, thin or old; empty when it is neither."""
        count = sum(len(item.blocks) for item in self.sessions)
        what = f"calibration of {self.metric} {self.workload}[{self.profile}] on {self.host_class}"
        if not count:
            return (f"no {what}: tokgate calibrate",)
        found = []
        if count < ENOUGH_BLOCKS:
            found.append(f"{what} holds {count} A/A blocks of {ENOUGH_BLOCKS}: tokgate calibrate")
        age = self.age_days(now)
        if age is not None and age > OLD_AFTER_DAYS:
            found.append(f"{what} is {age:.0f} days old (limit {OLD_AFTER_DAYS:.0f}): tokgate calibrate")
        return tuple(found)


ArmRuns = tuple[Sequence[float], Sequence[float]]
MeasureBlock = Callable[[], Mapping[str, ArmRuns]]
Save = Callable[[Mapping[str, Calibration]], None]


def calibrate(
    known: Mapping[str, Calibration],
    *,
    blocks: int,
    measure_block: MeasureBlock,
    save: Save,
    started_at: str,
) -> dict[str, Calibration]:
    """Measure A/A blocks until the session has as many as asked, saving after each.

    One block serves every metric and workload that is calibrated: the build is launched twice and runs
    them all.

    Args:
        known: calibrations so far, by any key that ``measure_block`` also uses. Where the last session
            started at ``started_at`` it is taken up again, from the last block that all of them have.
        blocks: wanted in this session.
        measure_block: launches the same build twice and returns the runs of each launch, by key. What it
            raises goes through; everything measured before has been saved.
        save: stores all calibrations; called after every block.
        started_at: identifies the session, UTC, ISO 8601.

    Returns:
        The calibrations with the finished session.

    Raises:
        SampleFault: a block lacks a key or gave a value that cannot be a measurement; it is not stored.
        ValueError: fewer than one block asked, or nothing to calibrate.
    """
    if blocks < 1 or not known:
        raise ValueError(f"a session has at least one block and one metric, not {blocks} and {len(known)}")
    _time(started_at)
    done = min(len(_session(item, started_at).blocks) for item in known.values())
    state = {
        key: _with(item, started_at, _session(item, started_at).blocks[:done]) for key, item in known.items()
    }
    for _ in range(done, blocks):
        runs = measure_block()
        if set(runs) != set(state):
            raise SampleFault(f"a block measured {sorted(runs)}, calibrated are {sorted(state)}")
        for key, (first, second) in runs.items():
            block(first, second, state[key].better)
        for key, (first, second) in runs.items():
            measured = AABlock(tuple(map(float, first)), tuple(map(float, second)))
            state[key] = _with(state[key], started_at, (*_session(state[key], started_at).blocks, measured))
        save(dict(state))
    return state


def _session(calibration: Calibration, started_at: str) -> Session:
    """The last session when it is the one that started then, else an empty one."""
    if calibration.sessions and calibration.sessions[-1].started_at == started_at:
        return calibration.sessions[-1]
    return Session(started_at, ())


def _with(calibration: Calibration, started_at: str, blocks: tuple[AABlock, ...]) -> Calibration:
    """With these blocks as the session that started then."""
    before = tuple(item for item in calibration.sessions if item.started_at != started_at)
    return replace(calibration, sessions=(*before, Session(started_at, blocks)))


class _Block(Section):
    first: list[float] = Field(min_length=1)
    second: list[float] = Field(min_length=1)


class _Session(Section):
    started_at: str
    blocks: list[_Block]


class _File(Section):
    schema_: Literal[1] = Field(alias="schema")
    host_class: str
    profile: str
    workload: str
    metric: str
    unit: str
    better: Literal["higher", "lower"]
    sessions: list[_Session]


def to_document(calibration: Calibration) -> dict[str, Any]:
    """Values for YAML or JSON; :func:`from_document` reads them back equal."""
    return {
        "schema": SCHEMA,
        "host_class": calibration.host_class,
        "profile": calibration.profile,
        "workload": calibration.workload,
        "metric": calibration.metric,
        "unit": calibration.unit,
        "better": calibration.better,
        "sessions": [
            {
                "started_at": session.started_at,
                "blocks": [{"first": list(b.first), "second": list(b.second)} for b in session.blocks],
            }
            for session in calibration.sessions
        ],
    }


def from_document(data: Mapping[str, Any]) -> Calibration:
    """Read what :func:`to_document` wrote.

    Raises:
        SampleFault: not a calibration of this schema; names every fault.
    """
    try:
        file = _File.model_validate(dict(data))
    except ValidationError as error:
        told = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise SampleFault("not a calibration", told) from error
    found = Calibration(
        file.host_class,
        file.profile,
        file.workload,
        file.metric,
        file.unit,
        file.better,
        tuple(
            Session(item.started_at, tuple(AABlock(tuple(b.first), tuple(b.second)) for b in item.blocks))
            for item in file.sessions
        ),
    )
    for session in found.sessions:
        _time(session.started_at)
    found.blocks()
    return found


def _time(text: str) -> datetime.datetime:
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise SampleFault(f"'{text}' is no ISO 8601 time") from error
    if found.tzinfo is None:
        raise SampleFault(f"'{text}' has no time zone")
    return found
