"""Measurer: runs of a workload on a running server, as Samples that are stored as soon as they exist."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokgate.analysis.parity_case import Case
from tokgate.analysis.voids import void_reasons
from tokgate.config.profiles import Profile
from tokgate.config.workloads import Workload
from tokgate.errors import EngineFault, HostFault, LoadFault
from tokgate.gate import passes
from tokgate.gate.greedy import GreedyClient
from tokgate.gate.parity import Answers, ask
from tokgate.gate.results import Results
from tokgate.gate.setup import Setup
from tokgate.gate.start import STARTUP, Starter
from tokgate.host.contention import difference, snapshot
from tokgate.load import prompts as prompt_sets
from tokgate.load.client import Deadlines, Stall, measure
from tokgate.load.sample import Audit, Identity, Sample
from tokgate.server.running import Server
from tokgate.server.timeline import Capture
from tokgate.sglang.http import resolved

SERVERS_DOING = ("failed_requests", "short_output", "excess_output", "prompt_length", "cached_tokens")
"""Causes of void runs that lie with what the server answered: no host is to blame."""


class Cancelled(Exception):
    """The gate is closing; raised between two runs."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All runs of a workload on one launch.

    Attributes:
        samples: runs that count, in order.
        void: runs that do not, each with its reasons.
        files: of ``samples``, in order.
    """

    samples: tuple[Sample, ...]
    void: tuple[Sample, ...]
    files: tuple[Path, ...]

    def series(self, metric: str) -> list[float]:
        """The metric's value of every run that has it, in its unit."""
        return [s.metrics[metric] for s in self.samples if metric in s.metrics]

    def extra_info(self) -> dict[str, object]:
        """What is kept beside the rounds of a benchmark: identity and every metric, run by run."""
        identity = self.samples[0].identity
        names = sorted({name for sample in self.samples for name in sample.metrics})
        return {
            "engine": identity.engine_name,
            "host_class": identity.host_class,
            "sglang": identity.sglang_version,
            **{name: self.series(name) for name in names},
        }


@dataclass(frozen=True, slots=True)
class Started:
    """One launch that became ready.

    Attributes:
        sample: seconds of each phase.
        file: where it is stored.
        captures: graph captures by kind and rank.
        odd_captures: ranks that differ from the others, in words.
        overrides: where the server runs with something else than was asked, in words.
        environments: what each worker process really has, by its title.
        nccl_version: ``None`` when the log does not give it.
    """

    sample: Sample
    file: Path
    captures: tuple[Capture, ...] = ()
    odd_captures: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    nccl_version: str | None = None


class Measurer:
    """Measures workloads and starts. Thread-safe.

    Args:
        setup: the checked request.
        results: where Samples go.
        starter: knows which model a profile serves.
    """

    def __init__(self, setup: Setup, results: Results, starter: Starter) -> None:
        self._setup = setup
        self._results = results
        self._starter = starter
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Make every measurement stop after its current run."""
        self._cancelled.set()

    def check(self) -> None:
        """Raises:
        Cancelled: the gate is closing.
        """
        if self._cancelled.is_set():
            raise Cancelled

    def startup(self, server: Server, profile: Profile) -> Started:
        """The start of a server: a Sample with seconds of each phase (``<phase>_s``) and ``startup_s``,
        and what the start showed of the server."""
        metrics: dict[str, float] = {}
        for phase in server.phases:
            name = f"{phase.name}_s"
            metrics[name] = metrics.get(name, 0.0) + phase.seconds
        metrics["startup_s"] = server.startup_s
        sample = Sample(
            identity=self._identity(server, profile, STARTUP, "", run=0),
            requests=(),
            audit=Audit(stamp_tier="user"),
            metrics=metrics,
            duration_s=server.startup_s,
        )
        return Started(
            sample,
            self._results.add_sample(sample),
            captures=server.captures,
            odd_captures=tuple(server.odd_captures),
            overrides=tuple(map(str, server.resolved())),
            environments=server.environments,
            nccl_version=server.nccl_version,
        )

    def workload(self, server: Server, profile: Profile, workload: Workload) -> Measured:
        """Warm up, then measure as often as ``gate.yaml`` says; a void run is repeated.

        Raises:
            Hang: the server fell silent; forensics are collected and the server is gone.
            Exited: the server died.
            EngineFault: more void runs than the bound, because requests fail or come short.
            HostFault: more void runs than the bound: the host is unfit.
            LoadFault: a run of which no request succeeded.
            ResultsUnwritable: a Sample cannot be stored.
            Cancelled: the gate is closing.
        """
        gate = self._setup.gate
        prompts = prompt_sets.build(workload, vocabulary=self._starter.served(profile).vocabulary)
        for _ in range(gate.runs.warmup):
            self._run(server, profile, workload, prompts, run=0)
        good: list[Sample] = []
        void: list[Sample] = []
        files: list[Path] = []
        while len(good) < gate.runs.measured:
            sample = self._run(server, profile, workload, prompts, run=len(good) + len(void))
            path = self._results.add_sample(sample)
            if not sample.void:
                good.append(sample)
                files.append(path)
                continue
            void.append(sample)
            if len(void) > gate.void.max_void_runs:
                failed = [v for s in void for v in s.void if v.cause in SERVERS_DOING]
                if failed:
                    raise EngineFault(
                        f"{len(void)} of {len(void) + len(good)} runs of {workload.name} are void: "
                        f"{failed[0].message}",
                        [f"run {s.identity.run}: {v.message}" for s in void for v in s.void][:12],
                        profile=profile.name,
                        phase=workload.name,
                        files=[server.log_path],
                    )
                raise HostFault(
                    f"{len(void)} of {len(void) + len(good)} runs are void: {void[0].void[0].message}",
                    [f"run {s.identity.run}: {reason.message}" for s in void for reason in s.void][:12],
                )
        return Measured(tuple(good), tuple(void), tuple(files))

    def parity(self, server: Server, case: Case, *, as_reference: bool) -> Answers:
        """The server's greedy answers to a case.

        Raises:
            Hang: it did not answer in time; it is gone.
            Exited: it died.
            LoadFault: it answered something else.
        """
        self.check()
        limit_s = self._setup.gate.deadlines.request_total_s
        began_s = time.monotonic()
        try:
            with server.watch("greedy parity"):
                return ask(GreedyClient(server.url, limit_s), case, as_reference=as_reference)
        except LoadFault as fault:
            server.ensure_alive()
            waited_s = time.monotonic() - began_s
            if waited_s >= limit_s:
                raise server.hang("greedy parity", waited_s, limit_s) from fault
            raise

    def _run(
        self,
        server: Server,
        profile: Profile,
        workload: Workload,
        prompts: prompt_sets.PromptSet,
        *,
        run: int,
    ) -> Sample:
        self.check()
        server.ensure_alive()
        server.flush_cache()
        pids = [process.pid for process in server.processes()]
        scraped = passes.scrape(server)
        before = snapshot(pids)
        try:
            with server.watch(f"{workload.name}"):
                got = measure(
                    server.url, workload, prompts, deadlines=self._deadlines(), keep_output_ids=True
                )
        except Stall as stall:
            server.ensure_alive()
            phase = f"{stall.phase} of {workload.name}"
            raise server.hang(phase, stall.waited_s, stall.limit_s) from stall
        contention = difference(before, snapshot(pids))
        sample = Sample(
            identity=self._identity(server, profile, workload.name, workload.digest, run=run),
            requests=got.requests,
            audit=got.audit,
            metrics=got.metrics,
            duration_s=got.duration_s,
            contention=contention,
            counters=passes.between(scraped, passes.scrape(server)),
            void=got.void,
        )
        if not any(r.outcome == "ok" for r in sample.requests):
            server.ensure_alive()
            first = sample.requests[0]
            raise LoadFault(
                f"no request of {workload.name}[{profile.name}] succeeded: {first.outcome}: {first.detail}"
            )
        reasons = void_reasons(sample, self._setup.gate.void)
        advisory = self._setup.gate.void.advisory_on.get(self._setup.engine.kind, [])
        return replace(
            sample,
            void=tuple(reason for reason in reasons if reason.cause not in advisory),
            advisory=tuple(reason for reason in reasons if reason.cause in advisory),
        )

    def _deadlines(self) -> Deadlines:
        given = self._setup.gate.deadlines
        return Deadlines(
            first_token_s=given.request_first_token_s,
            gap_s=given.request_gap_s,
            request_s=given.request_total_s,
            drain_s=given.request_total_s,
        )

    def _identity(
        self, server: Server, profile: Profile, workload: str, workload_digest: str, *, run: int
    ) -> Identity:
        engine = self._setup.engine
        return Identity(
            engine=engine.kind,
            engine_name=engine.name,
            sglang_version=server.version or self._setup.engine.version,
            host_class=self._setup.host_class,
            profile=profile.name,
            profile_digest=profile.digest,
            workload=workload,
            workload_digest=workload_digest,
            model=self._starter.served(profile).name,
            launch=server.launch[:12],
            run=run,
            started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            resolved=resolved(server.server_info),
        )
