"""``workloads.yaml``: what is asked of a server. A workload has a digest, which is part of every
baseline's identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from tokgate.config.document import Document, Section, nearest
from tokgate.config.engine import EngineKind
from tokgate.errors import UsageFault

Route = Literal["generate", "completions", "chat"]
PromptKind = Literal["tokens", "text", "trace"]


class PromptSection(Section):
    """Where prompts come from: generated token ids, the shipped texts, or a JSONL trace."""

    kind: PromptKind = "tokens"
    length_tokens: int = Field(default=64, ge=1)
    shared_prefix: float = Field(default=0.0, ge=0, le=1)
    seed: int = 0
    path: str | None = None


class ArrivalSection(Section):
    """Open loop: when requests are sent, whatever the server does. Absent: closed loop."""

    process: Literal["poisson", "constant", "trace"]
    rate_per_s: float | None = Field(default=None, gt=0)
    seed: int = 0


class SizeSection(Section):
    """Another size of a workload on one kind of engine; what is absent stays as given."""

    requests: int | None = Field(default=None, ge=1)
    output_tokens: int | None = Field(default=None, ge=2)
    length_tokens: int | None = Field(default=None, ge=1)


class WorkloadSection(Section):
    """One workload."""

    concurrency: int = Field(default=1, ge=1)
    requests: int = Field(ge=1)
    output_tokens: int = Field(ge=2)
    prompts: PromptSection = PromptSection()
    arrival: ArrivalSection | None = None
    route: Route = "generate"
    engines: list[EngineKind] = ["gpu", "cpu", "emulated"]
    slow: bool = False
    size_on: dict[EngineKind, SizeSection] = {}


class WorkloadsFile(Section):
    """Schema of ``workloads.yaml``."""

    workloads: dict[str, WorkloadSection]


@dataclass(frozen=True, slots=True)
class Prompts:
    """See :class:`PromptSection`. Lengths in tokens; ``shared_prefix`` is a share of the length."""

    kind: PromptKind = "tokens"
    length_tokens: int = 64
    shared_prefix: float = 0.0
    seed: int = 0
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """See :class:`ArrivalSection`. ``rate_per_s`` in requests a second."""

    process: Literal["poisson", "constant", "trace"]
    rate_per_s: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """What one run asks of a server.

    Attributes:
        concurrency: requests in flight at once (closed loop).
        requests: requests a run.
        output_tokens: tokens asked of each request; end-of-sequence is ignored.
        engines: engine kinds on which the gate runs it by default.
        slow: outside the quick matrix; run with ``-m slow`` or by name.
    """

    name: str
    concurrency: int
    requests: int
    output_tokens: int
    prompts: Prompts = Prompts()
    arrival: Arrival | None = None
    route: Route = "generate"
    engines: tuple[str, ...] = ("gpu", "cpu", "emulated")
    slow: bool = False

    @property
    def digest(self) -> str:
        """First 12 hex digits of SHA-256 over what is asked (not name, engines or slow)."""
        facts = asdict(self)
        for key in ("name", "engines", "slow"):
            facts.pop(key)
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Workloads:
    """The workloads of a file, in the sizes for one kind of engine."""

    path: Path
    workloads: Mapping[str, Workload]

    def get(self, name: str) -> Workload:
        """The workload of that name.

        Raises:
            UsageFault: no such workload; names the nearest.
        """
        if name in self.workloads:
            return self.workloads[name]
        raise UsageFault(f"no workload '{name}' in {self.path}; {nearest(name, list(self.workloads))}")


def load_workloads(path: Path, kind: EngineKind) -> Workloads:
    """Read ``workloads.yaml`` in the sizes for engines of ``kind``.

    Raises:
        ConfigFault: every fault of the file, each with its line.
    """
    document = Document(path)
    _check_sizes(document)
    raw = document.validate(WorkloadsFile)
    return Workloads(path, {name: _workload(name, section, kind) for name, section in raw.workloads.items()})


def _check_sizes(document: Document) -> None:
    """Record keys that are missing beside others or contradict them."""
    workloads = document.section("workloads")
    if "workloads" in document.data and not workloads:
        document.fault(("workloads",), "holds no workload")
    document.plain_names("workloads")
    for name in workloads:
        own = document.section("workloads", name)
        prompts = document.section("workloads", name, "prompts")
        arrival = document.section("workloads", name, "arrival")
        if prompts.get("kind") == "trace" and not prompts.get("path"):
            document.fault(("workloads", name, "prompts"), "a trace needs 'path'")
        if arrival.get("process") in {"poisson", "constant"} and arrival.get("rate_per_s") is None:
            document.fault(("workloads", name, "arrival"), "needs 'rate_per_s' (requests a second)")
        concurrency = own.get("concurrency", 1)
        sizes: dict[tuple[str, ...], object] = {("requests",): own.get("requests")}
        for kind, size in document.section("workloads", name, "size_on").items():
            if isinstance(size, dict):
                sizes["size_on", kind, "requests"] = size.get("requests")
        for where, requests in sizes.items():
            if (
                isinstance(requests, int)
                and isinstance(concurrency, int)
                and not arrival
                and requests < concurrency
            ):
                document.fault(
                    ("workloads", name, *where), f"{requests} is fewer than the concurrency, {concurrency}"
                )


def _workload(name: str, section: WorkloadSection, kind: EngineKind) -> Workload:
    size = section.size_on.get(kind, SizeSection())
    prompts = section.prompts.model_dump()
    prompts["length_tokens"] = size.length_tokens or section.prompts.length_tokens
    return Workload(
        name=name,
        concurrency=section.concurrency,
        requests=size.requests or section.requests,
        output_tokens=size.output_tokens or section.output_tokens,
        prompts=Prompts(**prompts),
        arrival=Arrival(**section.arrival.model_dump()) if section.arrival else None,
        route=section.route,
        engines=tuple(section.engines),
        slow=section.slow,
    )
