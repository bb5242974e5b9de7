"""Launches of one metric, from stored Samples or from a bare list of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokgate.analysis.exact import Counts, counts
from tokgate.analysis.values import Better, measured
from tokgate.errors import SampleFault
from tokgate.load.sample import Identity, Sample

BETTER: Mapping[str, Better] = {
    "output_tok_s": "higher",
    "output_tok_s_steady": "higher",
    "decode_tok_s": "higher",
    "goodput_request_per_s": "higher",
    "tokens_per_step": "higher",
    "accept_length": "higher",
    "ttft_s_p50": "lower",
    "ttft_s_p99": "lower",
    "step_ms_p50": "lower",
    "step_ms_p99": "lower",
    "tpot_ms": "lower",
    "e2e_s_p50": "lower",
    "cycle_ms": "lower",
}
"""Directions of the metrics that a Sample names, for those who give none."""

SAME = ("engine", "engine_name", "host_class", "workload_digest", "model")
"""What must be equal for two series to be compared at all."""
OF_A_SIDE = ("profile_digest", "sglang_version")
"""What may differ between two series, and not within one: a series is of one build and one configuration."""
PLAIN_KEYS = {"unit", "better", "launches", "what", "other"}


@dataclass(frozen=True, slots=True)
class Series:
    """Runs of one metric, by launch in the order measured.

    Attributes:
        unit: of the values, empty when unknown.
        better: ``higher`` or ``lower``.
        launches: runs of each launch.
        void: runs left out because they are void.
        identity: of the first Sample, ``None`` for a bare list.
        counts: verify counts of every run that has them, for accept length.
        names: of the launches, in order; empty for a bare list.
    """

    unit: str
    better: Better
    launches: tuple[tuple[float, ...], ...]
    void: int = 0
    identity: Identity | None = None
    counts: tuple[Counts, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[float, ...]:
        """All runs of all launches."""
        return tuple(value for launch in self.launches for value in launch)


def from_plain(data: Mapping[str, Any]) -> Series:
    """``{"unit", "better", "launches": [[...], ...]}``.

    Raises:
        SampleFault: a key is missing, unknown, or holds what cannot be a measurement.
    """
    unknown = sorted(set(data) - PLAIN_KEYS)
    if unknown:
        raise SampleFault(f"unknown key {', '.join(unknown)}; known: {', '.join(sorted(PLAIN_KEYS))}")
    for key in ("unit", "better", "launches"):
        if key not in data:
            raise SampleFault(f"key '{key}' is missing")
    if data["better"] not in ("higher", "lower"):
        raise SampleFault(f"'better' is 'higher' or 'lower', not {data['better']!r}")
    if not isinstance(data["launches"], list) or not data["launches"]:
        raise SampleFault("'launches' is a list of lists of numbers, one for each launch, and not empty")
    for i, launch in enumerate(data["launches"]):
        if not isinstance(launch, list) or any(
            isinstance(value, bool) or not isinstance(value, int | float) for value in launch
        ):
            raise SampleFault(f"launch {i + 1} is not a list of numbers")
    launches = tuple(
        tuple(map(float, measured(launch, f"launch {i + 1}"))) for i, launch in enumerate(data["launches"])
    )
    return Series(str(data["unit"]), data["better"], launches)


def from_samples(samples: Sequence[Sample], metric: str, better: Better | None = None) -> Series:
    """One metric of stored Samples, grouped by launch in the order of their start.

    Args:
        samples: of one profile and workload.
        metric: a name in ``Sample.metrics``.
        better: needed only for metrics that are not in :data:`BETTER`.

    Raises:
        SampleFault: several profiles, workloads or builds, no such metric, no direction, no run that counts.
    """
    good = [sample for sample in samples if not sample.void]
    void = len(samples) - len(good)
    if not good:
        raise SampleFault(f"all {void} runs are void: {_causes(samples)}" if void else "holds no samples")
    for key in ("profile", "workload", *SAME, *OF_A_SIDE):
        found = sorted({str(getattr(sample.identity, key)) for sample in good})
        if len(found) > 1:
            raise SampleFault(f"holds more than one {key}: {', '.join(found)}")
    direction = better or BETTER.get(metric)
    if direction is None:
        raise SampleFault(
            f"which direction of '{metric}' is better is not known: say --better higher or lower"
        )
    lacking = [sample for sample in good if metric not in sample.metrics]
    if lacking:
        known = ", ".join(sorted(good[0].metrics))
        raise SampleFault(f"{len(lacking)} of {len(good)} runs have no metric '{metric}'; there is: {known}")
    launches: dict[str, list[Sample]] = {}
    for sample in sorted(good, key=lambda item: (item.identity.started_at, item.identity.run)):
        launches.setdefault(sample.identity.launch, []).append(sample)
    values = tuple(
        tuple(map(float, measured([run.metrics[metric] for run in runs], f"{metric}, launch {name}")))
        for name, runs in launches.items()
    )
    each = [counts(run) for run in good] if metric == "accept_length" else []
    known_counts = tuple(item for item in each if item is not None)
    return Series(
        _unit(metric),
        direction,
        values,
        void,
        good[0].identity,
        known_counts if len(known_counts) == len(good) else (),
        tuple(launches),
    )


def incomparable(reference: Series, candidate: Series) -> tuple[str, ...]:
    """Why two series cannot be compared; empty when they can."""
    found = []
    for key in ("unit", "better"):
        a, b = getattr(reference, key), getattr(candidate, key)
        if a != b:
            found.append(f"{key}: {a} against {b}")
    if reference.identity is not None and candidate.identity is not None:
        for key in SAME:
            a, b = getattr(reference.identity, key), getattr(candidate.identity, key)
            if a != b:
                found.append(f"{key}: {a} against {b}")
    return tuple(found)


def shared_launches(reference: Series, candidate: Series) -> list[str]:
    """Launches that are on both sides: a build would be held against itself."""
    return sorted(set(reference.names) & set(candidate.names))


def _unit(metric: str) -> str:
    for ending, unit in (("tok_s", "tok/s"), ("_ms", "ms"), ("_s", "s")):
        if metric.endswith(ending) or f"{ending}_" in metric:
            return unit
    return ""


def _causes(samples: Sequence[Sample]) -> str:
    return ", ".join(sorted({reason.cause for sample in samples for reason in sample.void}))
