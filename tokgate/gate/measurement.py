"""Measurer: runs of a workload on a running server, as Samples that are stored as soon as they exist."""

from __future__ import annotations

import datetime
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from tokgate.analysis.voids import void_reasons
from tokgate.config.profiles import Profile
from tokgate.config.workloads import Workload
from tokgate.errors import HostFault, LoadFault
from tokgate.gate.results import Results
from tokgate.gate.setup import Setup
from tokgate.host.contention import Contention
from tokgate.load import prompts as prompt_sets
from tokgate.load.client import Stall, measure
from tokgate.load.sample import Audit, Identity, Sample
from tokgate.server.launch import Server

STARTUP = "startup"
"""The workload name under which start-up times are stored and judged."""


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


class Measurer:
    """Measures workloads and starts. Thread-safe.

    Args:
        setup: the checked request.
        results: where Samples go.
        models: profile name -> name of the model that it serves, empty for the emulated engine.
    """

    def __init__(self, setup: Setup, results: Results, models: dict[str, str]) -> None:
        self._setup = setup
        self._results = results
        self._models = models
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Make every measurement stop after its current run."""
        self._cancelled.set()

    def startup(self, server: Server, profile: Profile) -> Sample:
        """The start of a server as a Sample: ``<phase>_s`` and ``startup_s``."""
        metrics = {f"{name}_s": seconds for name, seconds in server.phases}
        metrics["startup_s"] = sum(seconds for _, seconds in server.phases)
        sample = Sample(
            identity=self._identity(server, profile, STARTUP, "", run=0),
            requests=(),
            audit=Audit(stamp_tier="user"),
            metrics=metrics,
            duration_s=metrics["startup_s"],
        )
        self._results.add_sample(sample)
        return sample

    def workload(self, server: Server, profile: Profile, workload: Workload) -> Measured:
        """Warm up, then measure as often as ``gate.yaml`` says; a void run is repeated.

        Raises:
            Hang: the server fell silent; forensics are collected and the server is gone.
            Exited: the server died.
            HostFault: more void runs than the bound: the host is unfit.
            LoadFault: a run of which no request succeeded.
            ResultsUnwritable: a Sample cannot be stored.
            Cancelled: the gate is closing.
        """
        gate = self._setup.gate
        prompts = prompt_sets.build(workload, vocabulary=None)
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
                raise HostFault(
                    f"{workload.name}[{profile.name}]: {len(void)} of {len(void) + len(good)} runs are void",
                    [reason.message for s in void for reason in s.void][:12],
                )
        return Measured(tuple(good), tuple(void), tuple(files))

    def _run(
        self,
        server: Server,
        profile: Profile,
        workload: Workload,
        prompts: prompt_sets.PromptSet,
        *,
        run: int,
    ) -> Sample:
        if self._cancelled.is_set():
            raise Cancelled
        server.ensure_alive()
        server.flush_cache()
        contention = Contention(server.worker_pids())
        try:
            got = measure(
                server.url,
                workload,
                prompts,
                deadlines=self._setup.gate.deadlines,
                keep_output_ids=True,
            )
        except Stall as stall:
            server.ensure_alive()
            raise server.hang(stall.phase, stall.waited_s, stall.limit_s) from stall
        counters = contention.difference()
        sample = Sample(
            identity=self._identity(server, profile, workload.name, workload.digest, run=run),
            requests=got.requests,
            audit=got.audit,
            metrics=got.metrics,
            duration_s=got.duration_s,
            contention=counters,
            void=got.void,
        )
        if not any(r.outcome == "ok" for r in sample.requests):
            server.ensure_alive()
            first = sample.requests[0]
            raise LoadFault(
                f"no request of {workload.name}[{profile.name}] succeeded: {first.outcome}: {first.detail}"
            )
        return replace(sample, void=(*sample.void, *void_reasons(sample, self._setup.gate.void)))

    def _identity(
        self, server: Server, profile: Profile, workload: str, workload_digest: str, *, run: int
    ) -> Identity:
        engine = self._setup.engine
        return Identity(
            engine=engine.kind,
            engine_name=engine.name,
            sglang_version=server.version,
            host_class=self._setup.host_class,
            profile=profile.name,
            profile_digest=profile.digest,
            workload=workload,
            workload_digest=workload_digest,
            model=self._models.get(profile.name, ""),
            launch=server.launch,
            run=run,
            started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            resolved=server.resolved,
        )
