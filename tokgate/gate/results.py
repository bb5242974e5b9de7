"""``results/<run>/``: everything a run produced, written as it is produced, so that a crash loses nothing.

::

    run.json                       what was run, by whom, and how it ended
    samples/<profile>/<workload>/  one file a run
    verdicts.jsonl                 one line a verdict, in the order in which they were reached
    logs/  forensics/              of the servers
    report.md  junit.xml           at the end
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import secrets
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from tokgate.config.document import Section
from tokgate.config.engine import EngineKind
from tokgate.errors import ResultsUnwritable, SampleFault
from tokgate.gate.ending import HELD, status_of
from tokgate.gate.stored_verdicts import verdicts_in
from tokgate.host.stored_file import hold
from tokgate.load.sample import Sample, write_json
from tokgate.verdict import Verdict

RUN_FILE = "TOKGATE_RUN_FILE"
"""Variable that names a file into which the folder of the run is written, for a caller of pytest."""


class Shelf:
    """Where the servers of a run, or of one arm of it, leave their Samples, logs and forensics. Thread-safe.

    Args:
        folder: made when needed.

    Raises:
        ResultsUnwritable: it cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("samples", "logs", "forensics"):
            _make(folder / name)

    def add_sample(self, sample: Sample) -> Path:
        """Store one Sample; returns its file.

        Raises:
            ResultsUnwritable: disk full or folder gone; Samples stored before stay whole.
        """
        of = sample.identity
        name = f"{of.launch}-r{of.run:02d}{'-void' if sample.void else ''}.sample.json"
        path = self.folder / "samples" / of.profile / of.workload / name
        write_json(path, sample.to_json())
        return path


class Results(Shelf):
    """The folder of one run. Thread-safe.

    Args:
        root: folder of all runs; ``root/latest`` points to the newest.
        facts: what goes into ``run.json``.

    Raises:
        ResultsUnwritable: the folder cannot be made.
    """

    def __init__(self, root: Path, facts: Mapping[str, Any]) -> None:
        now = datetime.datetime.now(datetime.UTC)
        self.name = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        self.folder = root / self.name
        self._facts = {"run": self.name, "started_at": now.isoformat(timespec="seconds"), **facts}
        self._lock = threading.Lock()
        self._hold = hold(self.folder)
        self._write_run("running", **{HELD: self._hold is not None})
        super().__init__(self.folder)
        _point(root / "latest", self.name)
        if RUN_FILE in os.environ:
            Path(os.environ[RUN_FILE]).write_text(str(self.folder.resolve()), encoding="utf-8")

    def _write_run(self, status: str, **facts: object) -> None:
        write_json(self.folder / "run.json", {**self._facts, **facts, "status": status})

    def add_verdict(self, verdict: Verdict) -> None:
        """Append one verdict.

        Raises:
            ResultsUnwritable: disk full or folder gone.
        """
        line = json.dumps(asdict(verdict), allow_nan=False) + "\n"
        try:
            with self._lock, (self.folder / "verdicts.jsonl").open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise ResultsUnwritable(f"verdicts cannot be written: {error.strerror}") from error

    def close(self, status: str, **facts: object) -> None:
        """Say in ``run.json`` how the run ended, and what else is known of its end."""
        self._facts |= {**facts, "samples": told_of_samples(self.folder)}
        self._facts["ended_at"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._write_run(status)
        if self._hold is not None:
            os.close(self._hold)
            self._hold = None


def told_of_samples(folder: Path) -> dict[str, Any] | None:
    """How many Samples a run holds, and a digest of their files and names; ``None`` where they cannot be read.

    Against slips (a file lost, an edit forgotten), not against intent: who edits figures can write a digest.
    """
    root = folder / "samples"
    paths = sorted(path for path in root.rglob("*.sample.json") if path.is_file())
    whole = hashlib.sha256()
    try:
        for path in paths:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            whole.update(f"{content}  {path.relative_to(root)}\n".encode())
    except OSError:
        return None
    return {"count": len(paths), "digest": whole.hexdigest()[:12]}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultsUnwritable(f"{folder} cannot be made: {error.strerror}") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file.

    Raises:
        ResultsUnwritable: disk full or folder gone.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResultsUnwritable(f"{path} cannot be written: {error.strerror}") from error


def check_writable(root: Path) -> None:
    """Find out, before anything is started, whether results can be written below ``root``.

    Raises:
        ResultsUnwritable: they cannot.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise ResultsUnwritable(f"results cannot be written to {root}: {error.strerror}") from error


def _point(link: Path, target: str) -> None:
    temporary = link.with_name(f".latest-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)
    except OSError as error:
        raise ResultsUnwritable(f"{link} cannot be written: {error.strerror}") from error


def find_run(root: Path, name: str) -> Path:
    """A run by name, by path, or ``latest``.

    Raises:
        SampleFault: no such run; names those that exist.
    """
    for candidate in (root / name, Path(name)):
        if (candidate / "run.json").is_file():
            return candidate.resolve()
    existing = sorted(p.parent.name for p in root.glob("*/run.json") if not p.parent.is_symlink())
    raise SampleFault(f"no run '{name}' in {root}", [f"runs there: {', '.join(existing[-10:]) or 'none'}"])


def read_run(folder: Path) -> dict[str, Any]:
    """``run.json`` of a run; its status may be :data:`~tokgate.gate.ending.UNTOLD`.

    Raises:
        SampleFault: unreadable or not JSON.
    """
    try:
        data = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise SampleFault(f"{folder / 'run.json'}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SampleFault(f"{folder / 'run.json'}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise SampleFault(f"{folder / 'run.json'}: not an object")
    return {**data, "status": status_of(folder, data)} if "status" in data else data


class StoredSamples(Section):
    """What a run says of the Samples that it stored; see :func:`told_of_samples`."""

    count: int
    digest: str


class RunFacts(Section):
    """What ``run.json`` says that a decision rests on; what else it says is passed over.

    Attributes:
        run: its name, whatever its folder is called now.
        status: how it ended, or that nobody knows; see :mod:`tokgate.gate.ending`.
        host_warnings: ``None`` when it does not tell.
        engine_faults: planted; ``None`` when it does not tell, as an older tokgate did not.
        not_run: names of tests that were left out by selection.
        host_class: of what was measured; of several classes all, with commas.
        references: profiles that were measured for others to be held against, and not asked for.
        verdicts: how many were reached; ``None`` when it does not tell, as while it runs.
        samples: that it stored; ``None`` when it does not tell, as while it runs, or as an older tokgate did not.
    """

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    run: str = Field(min_length=1)
    status: Literal["running", "complete", "interrupted", "failed", "ended without a word"]
    engine_kind: EngineKind
    host_class: str
    profiles: list[str]
    workloads: list[str]
    gated_metrics: list[str]
    host_warnings: list[str] | None = None
    engine_faults: list[str] | None = None
    not_run: list[str] = []
    references: list[str] = []
    verdicts: int | None = Field(default=None, ge=0)
    samples: StoredSamples | None = None


def read_facts(folder: Path) -> RunFacts:
    """``run.json`` of a run, checked.

    Raises:
        SampleFault: unreadable, not JSON, or not what a run writes; names every key that is wrong.
    """
    try:
        return RunFacts.model_validate(read_run(folder))
    except ValidationError as error:
        told = [f"{'.'.join(map(str, item['loc']))}: {item['msg'].lower()}" for item in error.errors()]
        raise SampleFault(f"{folder / 'run.json'}: not what a run writes", told) from error


def read_verdicts(folder: Path) -> list[Verdict]:
    """All verdicts of a run, in order; a last line cut short by a crash is dropped.

    Raises:
        SampleFault: it cannot be read, or a line is no verdict.
    """
    path = folder / "verdicts.jsonl"
    if path.exists() and not path.is_file():
        raise SampleFault(f"{path}: is no file")
    return list(verdicts_in(path)) if path.is_file() else []
