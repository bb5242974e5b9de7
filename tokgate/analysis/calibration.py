"""Calibration: how much block differences scatter on a host class and profile when nothing changed.

Sessions of A/A blocks are stored with every run, so that the figures can be made again from the file, and
pooled.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tokgate.analysis.blocks import Block, block
from tokgate.analysis.looks import ENOUGH_BLOCKS, History
from tokgate.analysis.values import Better
from tokgate.errors import SampleFault

OLD_AFTER_DAYS = 30.0
KNOWN_OF_SAMPLES = ("engine", "model", "profile_digest", "workload_digest")
"""What Samples say of the identity of a calibration: all but how their launches stood beside each other."""


@dataclass(frozen=True, slots=True)
class AABlock:
    """Runs of two launches of the same build, in the metric's unit."""

    first: tuple[float, ...]
    second: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """The A/A blocks of one request, never added to once it is met. ``started_at`` is UTC, ISO 8601."""

    started_at: str
    blocks: tuple[AABlock, ...]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Everything known of one metric's scatter on one host class and profile.

    Attributes:
        host_class, profile, workload, metric: what it is of.
        unit, better: of the metric.
        sessions: oldest first.
        identity: what else must be equal where it is used, as strings by name: digests of profile and workload,
            the model, the form of a block. What is not there is not known, and equals nothing.
    """

    host_class: str
    profile: str
    workload: str
    metric: str
    unit: str
    better: Better
    sessions: tuple[Session, ...] = ()
    identity: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``output_tok_s chat-bs1[baseline] on nvidia-h200``."""
        return f"{self.metric} {self.workload}[{self.profile}] on {self.host_class}"

    def with_session(self, session: Session) -> Calibration:
        """With this session in the place of the one that started at the same time, if there is one."""
        others = [item for item in self.sessions if item.started_at != session.started_at]
        ordered = sorted([*others, session], key=lambda item: time_of(item.started_at))
        return replace(self, sessions=tuple(ordered))

    def differences(self, identity: Mapping[str, str]) -> list[str]:
        """Why the calibration does not hold for what has this identity: one phrase a difference.

        What the calibration does not say of itself is a difference too; what is not asked is none. Of a model that is
        not made yet only what stands before its digest is known: ``1b@``.
        """

        def fits(said: str | None, now: str) -> bool:
            return said == now or (now.endswith("@") and (said or "").startswith(now))

        return [
            f"{key.replace('_', ' ')}: calibrated {self.identity.get(key, 'not said')}, now {value}"
            for key, value in identity.items()
            if not fits(self.identity.get(key), value)
        ]

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
        return (now - max(time_of(item.started_at) for item in self.sessions)).total_seconds() / 86400

    def remarks(self, now: datetime.datetime) -> tuple[str, ...]:
        """What the gate prints when the calibration is missing, thin or old; empty when it is neither."""
        count = sum(len(item.blocks) for item in self.sessions)
        what = f"calibration of {self.name}"
        if not count:
            return (f"no {what}: tokgate calibrate run",)
        found = []
        if count < ENOUGH_BLOCKS:
            found.append(f"{what} holds {count} A/A blocks of {ENOUGH_BLOCKS}: tokgate calibrate run")
        age = self.age_days(now)
        if age is not None and age > OLD_AFTER_DAYS:
            found.append(f"{what} is {age:.0f} days old (limit {OLD_AFTER_DAYS:.0f}): tokgate calibrate run")
        if age is not None and age < -1:
            # Its age says nothing then: it would be taken for new until the clock has caught up.
            found.append(f"{what} is dated {-age:.0f} days ahead of this host's clock: its age is not known")
        return tuple(found)


def time_of(text: str) -> datetime.datetime:
    """When a session began.

    Raises:
        SampleFault: no ISO 8601 time with a zone.
    """
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise SampleFault(f"'{text}' is no ISO 8601 time") from error
    if found.tzinfo is None:
        raise SampleFault(f"'{text}' has no time zone")
    return found
