"""Stored baselines: ``baselines/<host class>/<profile>/<workload>.yaml``.

A file holds epochs (a reason each), an epoch holds sessions (one recorded run each), a session holds
the runs of each metric on one line, so that a review shows what changed. :mod:`tokgate.accepting` writes them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from tokgate.config.document import Document, Section
from tokgate.config.names import check_plain
from tokgate.load.sample import Identity

SCHEMA = 1
STARTUP = "startup"
"""The workload name under which start-up times are stored and judged."""


class SessionSection(Section):
    """One recorded session: where the figures come from, and the runs of each metric."""

    run: str
    at: str
    sglang: str
    tokgate: str
    launches: int
    reason: str = ""
    samples: dict[str, list[float]]
    digest: str


class EpochSection(Section):
    """Sessions that share a level; a new epoch says why the level moved."""

    reason: str
    sessions: list[SessionSection]


class IdentitySection(Section):
    """What the figures were measured on. All of it must be equal for a comparison to mean anything."""

    engine: str
    host_class: str
    profile: str
    profile_digest: str
    workload: str
    workload_digest: str
    model: str


class BaselineFile(Section):
    """Schema of a baseline file."""

    schema_: int = Field(alias="schema")
    identity: IdentitySection
    epochs: list[EpochSection]


@dataclass(frozen=True, slots=True)
class Baseline:
    """One stored baseline.

    Attributes:
        path: the file.
        identity: what was measured, as strings by field name.
        sessions: of the last epoch, oldest first.
        reason: of the last epoch.
    """

    path: Path
    identity: Mapping[str, str]
    sessions: tuple[SessionSection, ...]
    reason: str

    def series(self, metric: str) -> list[list[float]]:
        """Runs of a metric by session (sessions x runs); sessions without the metric are left out."""
        return [list(s.samples[metric]) for s in self.sessions if s.samples.get(metric)]


def path_of(root: Path, host_class: str, profile: str, workload: str) -> Path:
    """Where the baseline of a case is stored.

    Raises:
        UsageFault: a name that would lead elsewhere.
    """
    check_plain("host class", host_class)
    return root / host_class / check_plain("profile", profile) / f"{check_plain('workload', workload)}.yaml"


def read(root: Path, host_class: str, profile: str, workload: str) -> Baseline | None:
    """The stored baseline of a case, or ``None`` when there is none.

    Raises:
        ConfigFault: the file is faulty; lists every fault with its line.
    """
    path = path_of(root, host_class, profile, workload)
    return load(path) if path.is_file() else None


def load(path: Path) -> Baseline:
    """A stored baseline.

    Raises:
        ConfigFault: as :func:`read`.
    """
    document = Document(path)
    raw = document.validate(BaselineFile)
    if raw.schema_ != SCHEMA:
        document.fault(("schema",), f"is {raw.schema_}, this tokgate reads {SCHEMA}")
    if not raw.epochs or not raw.epochs[-1].sessions:
        document.fault(("epochs",), "holds no session")
    for e, epoch in enumerate(raw.epochs):
        first: dict[str, int] = {}
        for n, session in enumerate(epoch.sessions):
            here = ("epochs", e, "sessions", n, "run")
            if session.run in first:
                # Each counts as a session of its own: what one left undecided would be decided by copies of it.
                document.fault(
                    here,
                    f"run {session.run} is there twice, first on line {first[session.run]}: remove one; "
                    "another session is another run, which tokgate accept adds",
                )
            first.setdefault(session.run, document.line(here))
            for metric, runs in session.samples.items():
                if not runs or not all(math.isfinite(value) and value >= 0 for value in runs):
                    document.fault(
                        ("epochs", e, "sessions", n, "samples", metric), "holds what no run can have measured"
                    )
            if session.digest != digest(session.model_dump()):
                document.fault(
                    ("epochs", e, "sessions", n, "digest"),
                    f"does not fit the session of run {session.run}: it was edited after `tokgate accept` "
                    f"wrote it; git checkout {path} brings it back, tokgate accept records a new session",
                )
    document.check()
    last = raw.epochs[-1]
    return Baseline(path, raw.identity.model_dump(), tuple(last.sessions), last.reason)


def digest(session: Mapping[str, object]) -> str:
    """Of what a session says that it measured: provenance and figures, not the reason given.

    Against slips of an editor and of a merge, not against intent: who edits figures can write a digest.
    """
    said = {key: session[key] for key in ("run", "at", "sglang", "tokgate", "launches", "samples")}
    text = json.dumps(said, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def differences(baseline: Baseline, identity: Identity) -> list[str]:
    """Why a baseline cannot be compared with what was measured: one phrase a difference."""
    now = identity_of(identity)
    return [
        f"{key.replace('_', ' ')}: baseline {baseline.identity[key]}, now {value}"
        for key, value in now.items()
        if baseline.identity[key] != value
    ]


def identity_of(identity: Identity) -> dict[str, str]:
    """The part of a Sample's identity that a baseline is bound to."""
    return {
        "engine": identity.engine,
        "host_class": identity.host_class,
        "profile": identity.profile,
        "profile_digest": identity.profile_digest,
        "workload": identity.workload,
        "workload_digest": identity.workload_digest,
        "model": identity.model,
    }


def orphans(root: Path, host_class: str, cases: Sequence[tuple[str, str]]) -> list[Path]:
    """Baseline files of a host class that belong to no (profile, workload) of ``cases``."""
    wanted = {path_of(root, host_class, profile, workload) for profile, workload in cases}
    return sorted(p for p in (root / host_class).glob("*/*.yaml") if p not in wanted)
