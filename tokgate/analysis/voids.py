"""Which runs do not count, by cause: what was measured beside the run, never the run's own result.

A run is void because its scheduler waited for a CPU, not because it was slow; dropping by value is left to
the trim of :mod:`tokgate.analysis.blocks`, which treats every arm alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tokgate.config.gate import VoidBounds
from tokgate.load.sample import Sample, Void

_STEAL = ("scheduler_steal_share", "stolen_share", "steal_s")
"""From the CPU under the scheduler; where that was not watched, of the CPU time that the machine wanted; in Samples
that lack it, averaged over all CPUs."""

THROTTLE_SHARE = 0.01
"""Share of a run for which a GPU may be slowed down by heat or power before the run is void."""

_HOST = {
    "scheduler_run_delay_s": ("scheduler_run_delay", "the engine's busiest-waiting thread waited for a CPU"),
    "gpu_power_throttle_s": ("gpu_power_throttle", "a GPU was slowed down by its power limit"),
    "gpu_thermal_throttle_s": ("gpu_thermal_throttle", "a GPU was slowed down by heat"),
}


GPU_CAUSES = ("gpu_power_throttle", "gpu_thermal_throttle", "foreign_gpu_process", "slow_cpu")
"""Causes that need a GPU."""


SOFT_CAUSES = ("slow_cpu",)
"""Causes that a slower build makes likelier: a run that has one is repeated a few times at most, and then counts. See
docs/decisions/slow-cpu.md."""


def void_reasons(sample: Sample, bounds: VoidBounds) -> tuple[Void, ...]:
    """Every reason why a run does not count, those already recorded first.

    What the client finds wrong with itself is among those (:mod:`tokgate.load.audit`), and not judged again.
    A counter that was not measured gives no reason and no clearance: see :func:`unwatched`.

    Args:
        sample: one run.
        bounds: from gate.yaml.
    """
    found = list(sample.void)
    known = {item.cause for item in found}
    for reason in (*_host(sample, bounds), *_requests(sample)):
        if reason.cause not in known:
            known.add(reason.cause)
            found.append(reason)
    return tuple(found)


def unwatched(sample: Sample) -> tuple[str, ...]:
    """Causes that could not have been seen on this run, because their counter is absent."""
    absent = [cause for counter, (cause, _) in _HOST.items() if counter not in sample.contention]
    if not any(counter in sample.contention for counter in _STEAL):
        absent.append("steal")
    if "foreign_gpu_processes" not in sample.contention:
        absent.append("foreign_gpu_process")
    if not {"scheduler_cpu_slowdown", "gpu_busy_share"} <= sample.contention.keys():
        absent.append("slow_cpu")
    if sample.audit.lag_p99_s is None:
        absent.append("client_lag")
    if any(item.cached_tokens is None for item in sample.requests if item.outcome == "ok"):
        absent.append("cached_tokens")
    return tuple(absent)


def _host(sample: Sample, bounds: VoidBounds) -> Iterator[Void]:
    limits: Mapping[str, float] = {
        "scheduler_run_delay_s": bounds.scheduler_run_delay_share,
        "gpu_power_throttle_s": THROTTLE_SHARE,
        "gpu_thermal_throttle_s": THROTTLE_SHARE,
    }
    span = sample.contention.get("interval_s", sample.duration_s)
    for counter, bound in limits.items():
        value = sample.contention.get(counter)
        if value is not None and span > 0 and value / span > bound:
            cause, what = _HOST[counter]
            yield _share(cause, value / span, bound, f"{what} for {1e3 * value:.0f} ms of {span:.2f} s")
    yield from _steal(sample, bounds.steal_share, span)
    yield from _slow_cpu(sample, bounds)
    foreign = sample.contention.get("foreign_gpu_processes", 0.0)
    if foreign > 0:
        text = f"{foreign:.0f} foreign process{'es' if foreign > 1 else ''} on the GPU"
        yield Void("foreign_gpu_process", foreign, 0, "processes", text)


def _steal(sample: Sample, bound: float, span: float) -> Iterator[Void]:
    share, of = sample.contention.get("scheduler_steal_share"), "the time of the scheduler's CPU"
    if share is None:
        share, of = sample.contention.get("stolen_share"), "the CPU time that this machine wanted"
    if share is None and "steal_s" in sample.contention and span > 0:
        share, of = sample.contention["steal_s"] / span, "all CPUs' time"
    if share is not None and share > bound:
        yield _share("steal", share, bound, f"the hypervisor gave a part of {of} to others")


def _slow_cpu(sample: Sample, bounds: VoidBounds) -> Iterator[Void]:
    """A slow CPU alone slows nothing that waits for the GPU: both are needed."""
    slowdown = sample.contention.get("scheduler_cpu_slowdown")
    busy = sample.contention.get("gpu_busy_share")
    bound = bounds.scheduler_cpu_slowdown
    if slowdown is None or busy is None or slowdown <= bound or busy >= bounds.gpu_busy_share:
        return
    text = (
        f"fixed work on the scheduler's CPU took {slowdown:.2f} x as long as on an undisturbed one (bound {bound:g}), "
        f"and the GPU was busy {100 * busy:.0f} % of the time (bound {100 * bounds.gpu_busy_share:g} %)"
    )
    yield Void("slow_cpu", slowdown, bound, "x", text)


def _requests(sample: Sample) -> Iterator[Void]:
    total = len(sample.requests)
    failed = Counter(item.outcome for item in sample.requests if item.outcome not in ("ok", "short"))
    if failed:
        told = ", ".join(f"{count} {outcome}" for outcome, count in failed.most_common())
        yield Void("failed_requests", failed.total(), 0, "requests", f"of {total} requests: {told}")
    short = sum(item.outcome == "short" for item in sample.requests)
    if short:
        yield Void(
            "short_output", short, 0, "requests", f"{short} of {total} requests gave fewer tokens than asked"
        )
    cached = sum(bool(item.cached_tokens) for item in sample.requests)
    if cached:
        text = f"{cached} of {total} requests found prompt tokens in the cache"
        yield Void("cached_tokens", cached, 0, "requests", text)


def _share(cause: str, value: float, bound: float, text: str) -> Void:
    message = f"{text}: {100 * value:.1f} % (bound {100 * bound:g} %)"
    return Void(cause, value, bound, "share", message)


@dataclass(frozen=True, slots=True)
class Fitness:
    """Whether enough runs count.

    Attributes:
        unfit: more runs were void than the bound allows: the host is judged, not the build.
        runs, void_runs: how many in all, how many void.
        causes: runs by cause, most frequent first; a run with two causes counts for both.
        message: one line.
    """

    unfit: bool
    runs: int
    void_runs: int
    causes: Mapping[str, int]
    message: str


def fitness(reasons: Sequence[Sequence[Void]], bounds: VoidBounds) -> Fitness:
    """Judge the host from the void reasons of every run of a block or case.

    Args:
        reasons: :func:`void_reasons` of each run, empty for those that count.
        bounds: from gate.yaml.
    """
    void = [item for item in reasons if item]
    causes = Counter(cause for item in void for cause in {reason.cause for reason in item})
    ordered = dict(causes.most_common())
    unfit = len(void) > bounds.max_void_runs or (bool(reasons) and len(void) == len(reasons))
    told = ", ".join(f"{cause} {count}x" for cause, count in ordered.items()) or "none void"
    message = f"{len(void)} of {len(reasons)} runs void (bound {bounds.max_void_runs}): {told}"
    return Fitness(unfit, len(reasons), len(void), ordered, message)
