"""Runs of one workload on one server: those that count, void ones apart, and what too many of these mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokgate.analysis.voids import SOFT_CAUSES
from tokgate.errors import EngineFault, HostFault, TokgateError
from tokgate.load.sample import Sample

SERVERS_DOING = ("failed_requests", "short_output", "excess_output", "prompt_length", "cached_tokens")
"""Causes of void runs that lie with what the server answered: no host is to blame."""

SHOWN = 12


@dataclass(frozen=True, slots=True)
class Measured:
    """All runs of a workload on one launch.

    Attributes:
        samples: runs that count, in order.
        void: runs that do not, each with its reasons.
        files: of ``samples``, in order.
        void_files: of ``void``, in order.
    """

    samples: tuple[Sample, ...]
    void: tuple[Sample, ...]
    files: tuple[Path, ...]
    void_files: tuple[Path, ...] = ()

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


class Runs:
    """Runs of one workload on one server, one by one.

    Args:
        measure: one run, given its number.
        store: keeps a Sample; returns its file.
        bound: how many void runs are repeated.
        patience: how many of those that are void by :data:`~tokgate.analysis.voids.SOFT_CAUSES` alone are repeated;
            later ones count, and the cause is kept with them. They are never too many.
        subject: profile, workload and log, for messages.
    """

    def __init__(
        self,
        measure: Callable[[int], Sample],
        store: Callable[[Sample], Path],
        *,
        bound: int,
        subject: tuple[str, str, Path],
        patience: int = 0,
    ) -> None:
        self._patience = patience
        self._measure = measure
        self._store = store
        self._bound = bound
        self._subject = subject
        self._good: list[tuple[Sample, Path]] = []
        self._void: list[tuple[Sample, Path]] = []

    def one(self) -> Sample:
        """Measure one run that counts; void ones are kept and repeated.

        Raises:
            TokgateError: as :meth:`tokgate.gate.measurement.Measurer.workload`.
        """
        while True:
            sample = self._measure(len(self._good) + len(self._void))
            soft = _soft(sample)
            if soft and self._patience <= 0:
                sample = replace(sample, void=(), advisory=(*sample.advisory, *sample.void))
            (self._void if sample.void else self._good).append((sample, self._store(sample)))
            if not sample.void:
                return sample
            self._patience -= soft
            hard = [s for s, _ in self._void if not _soft(s)]
            if len(hard) > self._bound:
                raise too_many(hard, len(self._good), *self._subject)

    @property
    def measured(self) -> Measured:
        """All runs so far."""
        good, void = self._good, self._void
        return Measured(
            tuple(s for s, _ in good),
            tuple(s for s, _ in void),
            tuple(p for _, p in good),
            tuple(p for _, p in void),
        )


def _soft(sample: Sample) -> bool:
    """Whether a run is void by soft causes alone."""
    return bool(sample.void) and all(reason.cause in SOFT_CAUSES for reason in sample.void)


def too_many(void: Sequence[Sample], good: int, profile: str, workload: str, log: Path) -> TokgateError:
    """The fault that more void runs than the bound amount to.

    Args:
        void: those runs.
        good: how many runs count.
        log: of the server.

    Returns:
        EngineFault when requests fail or come short, else HostFault: the host is unfit.
    """
    of = f"{len(void)} of {len(void) + good} runs"
    told = [f"run {sample.identity.run}: {reason.message}" for sample in void for reason in sample.void]
    failed = [reason for sample in void for reason in sample.void if reason.cause in SERVERS_DOING]
    if failed:
        return EngineFault(
            f"{of} of {workload} are void: {failed[0].message}",
            told[:SHOWN],
            profile=profile,
            phase=workload,
            files=[log],
        )
    return HostFault(f"{of} are void: {void[0].void[0].message}", told[:SHOWN])
