"""Calibrations as YAML files, one a metric: the one place of the analysis that touches the disk.

``baselines/<host class>/calibration/<profile>/<workload>/<metric>.calibration.yaml``
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from tokgate.analysis.calibration import AABlock, Calibration, Session, time_of
from tokgate.config.document import Document, Section
from tokgate.config.names import check_plain
from tokgate.errors import ConfigFault, SampleFault
from tokgate.host.stored_file import write_whole

FOLDER = "calibration"
SUFFIX = ".calibration.yaml"
SCHEMA = 1
HEADER = (
    "# Written by `tokgate calibrate`, reviewed by people. A session is the A/A blocks of one request;\n"
    "# a finished one is never added to.\n"
)


class _Block(Section):
    first: list[float] = Field(min_length=1)
    second: list[float] = Field(min_length=1)


class _Session(Section):
    started_at: str
    blocks: list[_Block]
    digest: str


class _File(Section):
    schema_: Literal[1] = Field(alias="schema")
    host_class: str
    profile: str
    workload: str
    metric: str
    unit: str
    better: Literal["higher", "lower"]
    identity: dict[str, str] = {}
    sessions: list[_Session]


def folder_of(root: Path, host_class: str, profile: str, workload: str) -> Path:
    """Where the calibrations of a case are stored, one file a metric.

    Raises:
        UsageFault: a name that would lead elsewhere.
    """
    check_plain("host class", host_class)
    return root / host_class / FOLDER / check_plain("profile", profile) / check_plain("workload", workload)


def path_of(root: Path, host_class: str, profile: str, workload: str, metric: str) -> Path:
    """Where the calibration of a metric is stored; raises as :func:`folder_of`."""
    name = check_plain("metric", metric).replace(":", "-")
    return folder_of(root, host_class, profile, workload) / f"{name}{SUFFIX}"


def read_case(root: Path, host_class: str, profile: str, workload: str) -> list[Calibration]:
    """The calibrations of all metrics of a case, in order of their files' names.

    Raises:
        SampleFault: as :func:`read_calibration`.
    """
    folder = folder_of(root, host_class, profile, workload)
    return [read_calibration(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]


def read_calibration(path: Path) -> Calibration:
    """Read a calibration.

    Raises:
        SampleFault: unreadable, not a calibration, or edited after it was written; names file and line.
    """
    try:
        document = Document(path)
    except ConfigFault as fault:
        raise SampleFault(fault.headline, fault.details) from fault
    try:
        file = document.validate(_File)
    except ConfigFault as fault:
        raise SampleFault(f"{fault.headline}: not a calibration", fault.details) from fault
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
        file.identity,
    )
    first: dict[str, int] = {}
    for number, session in enumerate(found.sessions):
        line = document.line(("sessions", number, "started_at"))
        if session.started_at in first:
            # Copies would count as blocks of their own: a thin calibration would pass for a full one.
            raise SampleFault(
                f"{path}:{line}: the session of {session.started_at} is there twice, first on line "
                f"{first[session.started_at]}: remove one; tokgate calibrate run measures another"
            )
        first[session.started_at] = line
        if file.sessions[number].digest != digest(found, session):
            raise SampleFault(
                f"{path}:{line}: the session of {session.started_at} was edited after tokgate calibrate wrote it, "
                f"or the head of the file was: its digest does not fit",
                [
                    f"git checkout {path} brings it back",
                    "a new one: remove the file, then tokgate calibrate run",
                ],
            )
    try:
        for session in found.sessions:
            time_of(session.started_at)
        found.blocks()
    except SampleFault as fault:
        raise SampleFault(f"{path}: not a calibration: {fault.headline}", fault.details) from fault
    return found


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration, one line for each launch's runs, so that a review shows what was added.

    Raises:
        ResultsUnwritable: disk full, folder missing or read-only.
    """
    document = {
        "schema": SCHEMA,
        **_head(calibration),
        "sessions": [
            {**_body(session), "digest": digest(calibration, session)} for session in calibration.sessions
        ],
    }
    write_whole(path, HEADER + yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=1000))


def digest(calibration: Calibration, session: Session) -> str:
    """Of the figures of a session and of what they are of: a session moved into another file fits it no longer.

    Against slips of an editor and of a merge, not against intent: who edits figures can write a digest.
    """
    text = json.dumps({**_head(calibration), **_body(session)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _head(calibration: Calibration) -> dict[str, Any]:
    return {
        "host_class": calibration.host_class,
        "profile": calibration.profile,
        "workload": calibration.workload,
        "metric": calibration.metric,
        "unit": calibration.unit,
        "better": calibration.better,
        "identity": dict(calibration.identity),
    }


def _body(session: Session) -> dict[str, Any]:
    return {
        "started_at": session.started_at,
        "blocks": [{"first": list(b.first), "second": list(b.second)} for b in session.blocks],
    }
