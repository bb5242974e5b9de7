"""Stored baselines: ``baselines/<host class>/<profile>/<workload>.yaml``.

A file holds epochs (a reason each), an epoch holds sessions (one recorded run each), a session holds
the runs of each metric on one line, so that a review shows what changed. Only ``tokgate accept``
writes them, and nothing lowers one by itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import Field

from tokgate.config.document import Document, Section
from tokgate.errors import ResultsUnwritable, UsageFault
from tokgate.load.sample import Identity, Sample

SCHEMA = 1
STARTUP = "startup"
"""The workload name under which start-up times are stored and judged."""
HEADER = "# Written by `tokgate accept`, reviewed by people. A session is one recorded run.\n"


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
    """Where the baseline of a case is stored."""
    return root / host_class / profile / f"{workload}.yaml"


def read(root: Path, host_class: str, profile: str, workload: str) -> Baseline | None:
    """The stored baseline of a case, or ``None`` when there is none.

    Raises:
        ConfigFault: the file is faulty; lists every fault with its line.
    """
    path = path_of(root, host_class, profile, workload)
    return _load(path) if path.is_file() else None


def _load(path: Path) -> Baseline:
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


def accept(
    root: Path,
    samples: Sequence[Sample],
    *,
    run: str,
    reason: str,
    metrics: Sequence[str],
    new_epoch: bool,
    tokgate_version: str,
) -> list[Path]:
    """Record the Samples of a run as one session of each case that they cover.

    Args:
        root: the ``baselines`` folder.
        samples: every Sample of the run, of any number of cases.
        run: the run's name, kept as provenance.
        reason: why these figures are accepted, for people.
        metrics: names of the metrics to store.
        new_epoch: start a new level instead of adding to the last one; also done where the identity
            of what is measured has changed, since old sessions cannot be compared with it.
        tokgate_version: provenance.

    Returns:
        The files written.

    Raises:
        UsageFault: a void or failed run among the Samples, an empty reason, this run already recorded,
            or no gated metric in a case.
        ResultsUnwritable: a file cannot be written.
    """
    if not reason.strip(" ."):
        raise UsageFault("accept needs a reason, for the person who reads the review")
    spoiled = [f"{_name(s)} run {s.identity.run}: {why}" for s in samples for why in _spoils(s)]
    if spoiled:
        raise UsageFault(f"run {run} cannot be accepted: {len(spoiled)} void or failed runs", spoiled[:20])
    prepared: list[tuple[Path, dict[str, object]]] = []
    for case in _cases(samples):
        first = case[0].identity
        path = path_of(root, first.host_class, first.profile, first.workload)
        figures = {
            metric: [_rounded(s.metrics[metric]) for s in case if metric in s.metrics]
            for metric in metrics
            if any(metric in s.metrics for s in case)
        }
        if not figures:
            raise UsageFault(f"{_name(case[0])} has none of the gated metrics: {', '.join(metrics)}")
        session: dict[str, object] = {
            "run": run,
            "at": first.started_at,
            "sglang": first.sglang_version,
            "tokgate": tokgate_version,
            "launches": len({s.identity.launch for s in case}),
            "reason": reason,
            "samples": figures,
        }
        session["digest"] = digest(session)
        prepared.append((path, _updated(path, first, session, reason=reason, run=run, new_epoch=new_epoch)))
    for path, content in prepared:
        _write(path, content)
    return [path for path, _ in prepared]


def _updated(
    path: Path, identity: Identity, session: Mapping[str, object], *, reason: str, run: str, new_epoch: bool
) -> dict[str, object]:
    epochs: list[dict[str, object]] = []
    if path.is_file():
        stored = _load(path)
        epochs = yaml.safe_load(path.read_text(encoding="utf-8"))["epochs"]
        if any(s.run == run for s in stored.sessions):
            raise UsageFault(f"{path} already holds run {run}")
        new_epoch = new_epoch or bool(differences(stored, identity))
    if new_epoch or not epochs:
        epochs.append({"reason": reason, "sessions": []})
    sessions = epochs[-1]["sessions"]
    assert isinstance(sessions, list)
    sessions.append(dict(session))
    return {"schema": SCHEMA, "identity": identity_of(identity), "epochs": epochs}


def _cases(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    grouped: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        grouped.setdefault((sample.identity.profile, sample.identity.workload), []).append(sample)
    yield from grouped.values()


def _spoils(sample: Sample) -> Iterator[str]:
    yield from (void.message for void in sample.void)
    bad = [r for r in sample.requests if r.outcome != "ok"]
    if bad:
        yield f"{len(bad)} of {len(sample.requests)} requests not ok ({bad[0].outcome}: {bad[0].detail})"


def _name(sample: Sample) -> str:
    return f"{sample.identity.workload}[{sample.identity.profile}]"


def _rounded(value: float) -> float:
    """Six significant digits: more than any clock here resolves, and a diff that people can read."""
    return float(f"{value:.6g}")


class _Dumper(yaml.SafeDumper):
    """Block style for mappings, one line for a list of figures."""


def _list(dumper: _Dumper, data: list[object]) -> yaml.Node:
    flow = all(isinstance(item, (int, float)) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)


_Dumper.add_representer(list, _list)


def _write(path: Path, content: Mapping[str, object]) -> None:
    text = HEADER + yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, width=10_000)
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise ResultsUnwritable(f"{path} cannot be written: {error.strerror}") from error
