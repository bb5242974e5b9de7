"""Measurer: runs of a workload on a running server, as Samples that are stored as soon as they exist."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from tokgate.analysis.parity_case import Case
from tokgate.analysis.voids import void_reasons
from tokgate.config.profiles import Profile
from tokgate.config.workloads import Workload
from tokgate.errors import LoadFault
from tokgate.gate import passes
from tokgate.gate.cycle import traces
from tokgate.gate.cycle.log import LogMark
from tokgate.gate.cycle.traces import Traced
from tokgate.gate.greedy import GreedyClient
from tokgate.gate.parity import Answers, ask
from tokgate.gate.results import Shelf
from tokgate.gate.runs import Measured, Runs
from tokgate.gate.setup import Setup
from tokgate.gate.start import STARTUP, STARTUP_TOGETHER, Starter
from tokgate.gate.started import Started
from tokgate.gate.watch import Blind, Watch, memory
from tokgate.load import prompts as prompt_sets
from tokgate.load.client import Deadlines, Stall, measure
from tokgate.load.processes import Progress
from tokgate.load.sample import Audit, Identity, Sample
from tokgate.server.running import Server
from tokgate.sglang.http import resolved

PATIENCE = 3
"""Runs of a case that are repeated because the scheduler's CPU was slow."""


class Cancelled(Exception):
    """The gate is closing; raised between two runs."""


class Measurer:
    """Measures workloads and starts. Thread-safe.

    Args:
        setup: the checked request.
        results: where Samples go.
        starter: knows which model a profile serves.
        beside: processes of other servers that the gate keeps up on the same GPUs.
        crowded: whether other servers start on the same GPUs at the same time, as those of a block do.
        patience: see :class:`~tokgate.gate.runs.Runs`.

    Attributes:
        blind: what no run could have been void by, because it was not watched.
    """

    def __init__(
        self,
        setup: Setup,
        results: Shelf,
        starter: Starter,
        *,
        beside: Callable[[], Iterable[int]] = tuple,
        crowded: bool = False,
        patience: int = PATIENCE,
    ) -> None:
        self._patience = patience
        self._crowded = crowded
        self._setup = setup
        self._watch = Watch(setup, beside)
        self.blind = Blind(setup.engine.kind)
        self._results = results
        self._starter = starter
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Make every measurement stop after its current run."""
        self._cancelled.set()

    def close(self) -> None:
        """End what watches beside the runs."""
        self._watch.close()

    def check(self) -> None:
        """Raises:
        Cancelled: the gate is closing.
        """
        if self._cancelled.is_set():
            raise Cancelled

    def startup(self, server: Server, profile: Profile) -> Started:
        """The start of a server: a Sample with seconds of each phase (``<phase>_s``), ``startup_s`` and the
        memory that it took, and what the start showed of the server."""
        metrics: dict[str, float] = {}
        for phase in server.phases:
            name = f"{phase.name}_s"
            metrics[name] = metrics.get(name, 0.0) + phase.seconds
        metrics["startup_s"] = server.startup_s
        alone = self._setup.request.start_together == 1
        metrics |= memory(server, alone=alone and not self._crowded)
        sample = Sample(
            identity=self._identity(server, profile, STARTUP if alone else STARTUP_TOGETHER, "", run=0),
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
            variables=server.variables,
            libraries=server.libraries,
            nccl_version=server.nccl_version,
            ranks=profile.tp,
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
        runs = self.runs(server, profile, workload)
        for _ in range(self._setup.gate.runs.measured):
            runs.one()
        return runs.measured

    def runs(self, server: Server, profile: Profile, workload: Workload) -> Runs:
        """Warm a workload up, to be measured run by run.

        Raises:
            TokgateError: as :meth:`workload`.
        """
        prompts = prompt_sets.build(workload, vocabulary=self._starter.served(profile).vocabulary)
        for _ in range(self._setup.gate.runs.warmup):
            self._run(server, profile, workload, prompts, run=0)
        return Runs(
            lambda number: self._run(server, profile, workload, prompts, run=number),
            self._results.add_sample,
            bound=self._setup.gate.void.max_void_runs,
            subject=(profile.name, workload.name, server.log_path),
            patience=self._patience,
        )

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

    def trace(self, server: Server, profile: Profile, workload: Workload) -> Traced:
        """A few steps of the server under a workload's requests, recorded by the engine's own profiler.

        Raises:
            Hang: it did not answer in time; it is gone.
            Exited: it died.
        """
        self.check()
        setup = self._setup
        return traces.record(
            server,
            workload.name,
            self._results.folder / "traces" / profile.name / workload.name,
            traces.Request(
                prompts=traces.prompts_of(workload, self._starter.served(profile).vocabulary),
                steps=setup.request.trace_steps,
                tokens_a_step=traces.tokens_a_step(server),
                version=server.version or setup.engine.version,
                kind=setup.engine.kind,
                ranks=profile.tp,
            ),
            limit_s=setup.gate.deadlines.request_total_s,
        )

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
        processes = server.processes()
        scraped = passes.scrape(server)
        log = LogMark(server.log_path)
        try:
            died = threading.Event()

            def let_go(_: Progress) -> None:
                # A half-dead server may be silent until a deadline of the client's.
                if died.is_set():
                    raise LoadFault("a process of the server died")

            with (
                self._watch.during(processes) as contention,
                server.watch(f"{workload.name}", on_death=died.set),
            ):
                got = measure(
                    server.url,
                    workload,
                    prompts,
                    deadlines=self._deadlines(),
                    keep_output_ids=True,
                    on_progress=let_go,
                )
        except Stall as stall:
            server.ensure_alive()
            phase = f"{stall.phase} of {workload.name}"
            raise server.hang(phase, stall.waited_s, stall.limit_s) from stall
        sample = Sample(
            identity=self._identity(server, profile, workload.name, workload.digest, run=run),
            requests=got.requests,
            audit=got.audit,
            metrics=got.metrics,
            duration_s=got.duration_s,
            contention=contention,
            counters=passes.between(scraped, passes.scrape(server)) | log.read(workload.concurrency),
            void=got.void,
        )
        if not any(r.outcome == "ok" for r in sample.requests):
            server.ensure_alive()
            first = sample.requests[0]
            raise LoadFault(
                f"no request of {workload.name}[{profile.name}] succeeded: {first.outcome}: {first.detail}"
            )
        self.blind.add(sample)
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
            host_class=self._setup.host_classes[profile.name],
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
