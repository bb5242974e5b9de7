"""Sample: the record of one run of one workload on one launch.

A Sample holds everything that a verdict needs, so that stored ones can be judged again with no GPU.
Times are seconds from the run's start on CLOCK_MONOTONIC unless a name says otherwise. Tokens are the
server's own counts, never counts of chunks. What a server did not report is ``None``, never 0.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tokgate.errors import ResultsUnwritable, SampleFault, UsageFault
from tokgate.host.stored_file import is_special, write_whole
from tokgate.load.stored_fields import fields_of, figure, figures, is_object, objects

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """What was measured. Two Samples are comparable only when the fields that matter are equal.

    Attributes:
        engine: ``gpu``, ``cpu`` or ``emulated``.
        engine_name: name of the engine file or scenario.
        sglang_version: as the server reports it.
        host_class: slug of the GPU's NVML name (``-xN`` for N > 1), ``cpu-...`` or ``emulated-...``.
        profile, profile_digest, workload, workload_digest: from the configuration.
        model: name and digest of the model, empty for the emulated engine.
        launch: identifier of the server process that served it.
        run: 0-based number of the run on this launch (warm-ups are not counted and not stored).
        started_at: UTC, ISO 8601.
        resolved: server arguments as the server reports them, those that change what is measured.
    """

    engine: str
    engine_name: str
    sglang_version: str
    host_class: str
    profile: str
    profile_digest: str
    workload: str
    workload_digest: str
    model: str
    launch: str
    run: int
    started_at: str
    resolved: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a run.

    Attributes:
        index: 0-based position in the workload's prompts.
        outcome: ``ok``, ``short`` (fewer tokens than asked), or a counted failure: ``refused``,
            ``http_4xx``, ``http_5xx``, ``stream_error``, ``early_close``, ``stalled``, ``malformed``,
            ``interrupted`` (the run was ended), ``unsent`` (an earlier request stalled, or the run was ended).
        intended_s, sent_s, first_token_s, last_token_s: ``None`` where it never came to that.
        prompt_tokens, completion_tokens, cached_tokens: the server's counts.
        first_tokens: tokens that the first token-bearing event carried.
        steps: token-bearing events, merged reads split by event.
        queue_s: time in the server's queue, as reported.
        verify_count: verify passes of speculative decoding, as reported on the final event.
        accept_histogram: passes by number of accepted draft tokens, index 0..steps, as reported.
        output_ids: generated token ids, when the workload keeps them.
        detail: for a failure, what was seen.
    """

    index: int
    outcome: str
    intended_s: float
    sent_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    first_tokens: int | None = None
    steps: int = 0
    queue_s: float | None = None
    verify_count: int | None = None
    accept_histogram: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Audit:
    """How far the measuring client can be trusted in this run.

    Attributes:
        stamp_tier: ``tap``, ``kernel`` (SO_TIMESTAMPNS) or ``user`` (clock after the read).
        lag_p99_s: 99th percentile of user clock minus kernel stamp; ``None`` without kernel stamps.
        merged_read_share: share of reads that held more than one event.
        unstamped_share: share of reads without a kernel stamp.
        client_cpu_s, client_run_delay_s: CPU time and time runnable but not running, of the client.
        client_peak_mib: peak memory of the client, its workers added up; ``None`` in older Samples.
        clock_step_s: largest step between CLOCK_REALTIME and CLOCK_MONOTONIC seen during the run.
        reader: what read the connections, ``c`` (compiled) or ``python``; ``None`` in older Samples.
        reader_reason: why it was not the compiled one; empty when it was.
    """

    stamp_tier: str
    lag_p99_s: float | None = None
    merged_read_share: float = 0.0
    unstamped_share: float = 0.0
    client_cpu_s: float = 0.0
    client_run_delay_s: float | None = None
    clock_step_s: float = 0.0
    client_peak_mib: float | None = None
    reader: str | None = None
    reader_reason: str = ""


@dataclass(frozen=True, slots=True)
class Void:
    """Why a run does not count: the cause, what was measured, the bound."""

    cause: str
    measured: float
    bound: float
    unit: str
    message: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One run. See the module's docstring.

    Attributes:
        metrics: name with unit -> value, as docs/reference/metrics.md defines them; absent where they
            have no meaning.
        contention: counters of the host over the run: ``scheduler_run_delay_s``, ``steal_s``, ...
        counters: what the server's own counters moved by over the run: ``decode_graph_passes``, ... (see
            :mod:`tokgate.gate.passes`); a counter that it does not have is absent.
        void: reasons why the run does not count; empty when it does.
        advisory: what would void the run on an engine where time is not emulated; kept, never hidden.
    """

    identity: Identity
    requests: tuple[Request, ...]
    audit: Audit
    metrics: Mapping[str, float]
    duration_s: float
    contention: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    void: tuple[Void, ...] = ()
    advisory: tuple[Void, ...] = ()
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """JSON values only; :meth:`from_json` reads it back equal."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sample:
        """Read one stored Sample.

        Raises:
            SampleFault: not a Sample of this schema; names the field.
        """
        if is_object("it", data).get("schema") != SCHEMA:
            raise SampleFault(f"sample schema {data.get('schema')!r}, this tokgate reads {SCHEMA}")
        try:
            return cls(
                identity=Identity(**fields_of(Identity, is_object("identity", data["identity"]))),
                requests=tuple(_request(item) for item in objects(data, "requests")),
                audit=Audit(**fields_of(Audit, is_object("audit", data["audit"]))),
                metrics=figures(data, "metrics"),
                duration_s=figure("duration_s", data["duration_s"]),
                contention=figures(data, "contention"),
                counters=figures(data, "counters"),
                void=tuple(Void(**fields_of(Void, item)) for item in objects(data, "void")),
                advisory=tuple(Void(**fields_of(Void, item)) for item in objects(data, "advisory")),
            )
        except KeyError as error:
            raise SampleFault(f"not a sample: lacks {error.args[0]}") from error


def _request(data: Mapping[str, Any]) -> Request:
    known = fields_of(Request, data)
    for key in ("accept_histogram", "output_ids"):
        if known.get(key) is not None:
            known[key] = tuple(known[key])
    for key in ("prompt_tokens", "completion_tokens", "cached_tokens", "first_tokens", "verify_count"):
        if (counted := known.get(key)) is not None and counted < 0:
            raise SampleFault(f"not a sample: Request.{key} cannot be {counted}: it is a count")
    return Request(**known)


def twice(samples: Iterable[Sample]) -> list[str]:
    """Runs that are there more than once, in words: a copy of a run says nothing that the run did not say.

    A void run and the one that was measured in its place may have the same number.
    """
    seen: set[tuple[str, str, str, int, bool]] = set()
    found = []
    for sample in samples:
        of = sample.identity
        key = (of.profile, of.workload, of.launch, of.run, bool(sample.void))
        if key in seen:
            found.append(f"run {of.run} of launch {of.launch} ({of.workload}[{of.profile}])")
        seen.add(key)
    return found


def write_json(path: Path, data: object) -> None:
    """Write JSON so that the file is either whole or not there (temporary file, fsync, rename).

    Raises:
        ResultsUnwritable: disk full, folder missing or read-only.
    """
    write_whole(path, json.dumps(data, separators=(",", ":"), allow_nan=False))


def check_writable(path: Path) -> None:
    """Find out before a measurement whether :func:`write_json` may write there; the folder is made.

    Raises:
        UsageFault: it is a folder.
        ResultsUnwritable: the folder is missing and cannot be made, or is read-only.
    """
    if path.is_dir():
        raise UsageFault(f"results cannot be written to {path}: it is a folder", ["name a file in it"])
    if is_special(path):
        if not os.access(path, os.W_OK):
            raise ResultsUnwritable(f"results cannot be written to {path}: Permission denied")
        return
    place = path.resolve()
    trial = place.with_name(f".{place.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        trial.touch(exist_ok=False)
        trial.unlink()
    except OSError as error:
        raise ResultsUnwritable(f"results cannot be written to {path}: {error.strerror}") from error


def read_samples(path: Path) -> list[Sample]:
    """All Samples of a file (one object or a list) or of a folder of ``*.sample.json``, in name order.

    Raises:
        SampleFault: unreadable, not JSON, or not Samples; names the file.
    """
    paths = sorted(path.rglob("*.sample.json")) if path.is_dir() else [path]
    found: list[Sample] = []
    for item in paths:
        if item.exists() and not item.is_file():
            # A pipe would be waited for.
            raise SampleFault(f"{item}: is no file")
        try:
            data = json.loads(item.read_text(encoding="utf-8"))
            found += [Sample.from_json(entry) for entry in (data if isinstance(data, list) else [data])]
        except OSError as error:
            raise SampleFault(f"{item}: cannot be read: {error.strerror}") from error
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise SampleFault(f"{item}: not JSON: {error}") from error
        except RecursionError as error:
            raise SampleFault(f"{item}: not a sample: it is nested too deeply") from error
        except SampleFault as error:
            raise SampleFault(f"{item}: {error}") from error
    if not found:
        raise SampleFault(f"{path}: holds no samples")
    return found
