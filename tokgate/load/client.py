"""Measure a server: start the worker processes, watch over them, and turn what they bring into a result."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from tokgate import environments
from tokgate.config.workloads import Workload
from tokgate.errors import HostFault, UsageFault
from tokgate.load import arrivals, audit, library, routes
from tokgate.load.endings import ClientLost, CutShort, Interrupted, Stall
from tokgate.load.limits import LOWEST_S
from tokgate.load.measurement import Measurement
from tokgate.load.metrics import Slo, metrics
from tokgate.load.processes import Progress, run_workers
from tokgate.load.prompts import PromptSet
from tokgate.load.recording import Recording, read
from tokgate.load.routes import Protocol
from tokgate.load.scratch import scratch, write_requests
from tokgate.load.tap import allowed

Stamps = Literal["kernel", "tap"]
ReadBy = Literal["auto", "c", "python"]

# One worker reads about 100k chunks/s on a free core; half of that leaves room for bursts.
SLOTS_PER_WORKER = 256
LOWEST_WORKER_S = 1.0  # a worker gives a sign of life four times a second


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long nothing may happen, seconds.

    Attributes:
        first_token_s: from sending to the first event.
        gap_s: between events of one stream.
        request_s: from sending to the end of the response.
        drain_s: from the last request sent to the end of all.
        worker_s: without a sign of life from a worker process.
    """

    first_token_s: float = 60.0
    gap_s: float = 30.0
    request_s: float = 600.0
    drain_s: float = 600.0
    worker_s: float = 30.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            lowest = LOWEST_S if name != "worker_s" else LOWEST_WORKER_S
            if not (math.isfinite(value) and value >= lowest):
                raise UsageFault(
                    f"deadline {name} is {value:g} s; the lowest is {lowest:g} s",
                    [
                        "deadlines tell a server that hangs; limits of latency are --slo-ttft-s and --slo-tpot-ms"
                    ],
                )


def measure(
    url: str,
    workload: Workload,
    prompts: PromptSet,
    *,
    deadlines: Deadlines,
    keep_output_ids: bool = False,
    pin_cpus: Sequence[int] | None = None,
    protocol: Protocol | None = None,
    slo: Slo | None = None,
    ramp_s: float = 0.0,
    workers: int | None = None,
    stamps: Stamps = "kernel",
    reader: ReadBy = "auto",
    on_progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], str] | None = None,
) -> Measurement:
    """Run a workload once.

    Args:
        url: base URL of the server, ``http://HOST:PORT``.
        workload: what is asked; without ``arrival`` a closed loop.
        prompts: from :func:`tokgate.load.prompts.build`.
        deadlines: how long nothing may happen.
        keep_output_ids: also keep the generated token ids (``/generate``).
        pin_cpus: CPUs that the workers are bound to, best none of the engine's.
        protocol: model name, headers.
        slo: also report goodput under it.
        ramp_s: spread the first request of each slot of a closed loop over this time.
        workers: client processes; by default one per 256 concurrent streams.
        stamps: who dates what arrives: the kernel at each socket, or a tap on the wire.
        reader: what reads: compiled code (``c``), Python, or compiled code where it can be had.
        on_progress: called about four times a second.
        stop: asked about four times a second; words that are not empty end the run, and say why.

    Raises:
        Stall: a deadline passed.
        Interrupted: ``stop`` said so.
        ClientLost: a worker died or hung. This and the two above carry what was measured.
        LoadFault: a worker did not start.
        HostFault: the tap is asked for and not allowed, or compiled code is and cannot be had.
        UsageFault: the URL (a host that does not resolve, say) or the prompts do not fit.
    """
    protocol = protocol or Protocol()
    if stamps == "tap" and not allowed():
        raise HostFault(
            "this process may not tap the wire: packet sockets need the capability CAP_NET_RAW",
            ["measure as root, or with kernel stamps (--stamps kernel)"],
        )
    absent = sorted(set(pin_cpus or ()) - os.sched_getaffinity(0))
    if absent:
        raise UsageFault(f"the client cannot be bound to CPU {absent[0]}: it is not one of this process's")
    target = routes.resolve(url)
    bodies = routes.requests(workload, prompts, target, protocol)
    asked = {i: routes.asked(workload, prompts, i) for i in range(len(prompts))}
    closed = workload.arrival is None
    if workload.arrival is None:
        gap_s = ramp_s / workload.concurrency
        due_s = [min(i, workload.concurrency) * gap_s for i in range(len(bodies))]
        due_s[workload.concurrency :] = [0.0] * len(due_s[workload.concurrency :])
    else:
        due_s = arrivals.schedule(workload.arrival, len(bodies), prompts)
    slots = min(workload.concurrency, len(bodies)) if closed else 0
    count = min(workers or -(-max(slots, 1) // SLOTS_PER_WORKER), max(slots, 1) if closed else len(bodies))
    with scratch() as folder:
        read_by = _read_by(reader, folder)
        spans = write_requests(folder / "requests.bin", bodies)
        for worker in range(count):
            plan = [
                [i, int(due_s[i] * 1e9), *spans[i], asked[i]]
                for i in range(len(bodies))
                if i % count == worker
            ]
            job = {
                "address": [target.family, list(target.address)],
                "slots": slots // count + (worker < slots % count),
                "plan": plan,
                "deadlines": asdict(deadlines),
                "keep_output_ids": keep_output_ids,
                "pin_cpus": sorted(pin_cpus) if pin_cpus else None,
                "stamps": stamps,
                "reader": read_by,
            }
            (folder / f"job{worker}.json").write_text(json.dumps(job), encoding="utf-8")
        ran = run_workers(folder, count, len(bodies), deadlines.worker_s, on_progress, stop)
        recording = read([folder / f"result{worker}.bin" for worker in ran.brought], ran.start_ns)
    if read_by["must"] and recording.reader[0] == "python":
        raise _no_compiled_reader(recording.reader[1])
    lengths = {i: len(ids) for i, ids in enumerate(prompts.ids or ())}
    measurement = _judge(recording, prompts, slots, count, asked, lengths, slo)
    if ran.lost is not None:
        raise ClientLost(ran.lost, measurement, len(bodies))
    if ran.stopped:
        raise Interrupted(ran.stopped, measurement, len(bodies))
    if recording.stalls:
        raise Stall(*recording.stalls[0], measurement)
    return measurement


def _read_by(asked: ReadBy, workplace: Path) -> dict[str, str]:
    """For the worker: ``name`` of the reader, ``why`` not the compiled one, its ``library``, whether it ``must`` be."""
    if asked == "auto":
        named = os.environ.get("TOKGATE_READER") or "auto"
        if named not in get_args(ReadBy):
            raise UsageFault(f"TOKGATE_READER={named}: expected {', '.join(get_args(ReadBy))}")
        asked = named  # type: ignore[assignment]
    must = "must" if asked == "c" else ""
    if asked == "python":
        return {"name": "python", "why": "asked for", "library": "", "must": must}
    try:
        made = library.made(environments.home() / "lib", workplace)
    except (library.Unavailable, RuntimeError) as error:  # the latter: a user without a home
        if must:
            raise _no_compiled_reader(str(error)) from None
        return {"name": "python", "why": str(error), "library": "", "must": must}
    return {"name": "c", "why": "", "library": str(made), "must": must}


def _no_compiled_reader(why: str) -> HostFault:
    return HostFault(
        f"the compiled reader cannot be had: {why}", ["without TOKGATE_READER=c Python reads instead"]
    )


def _judge(
    recording: Recording,
    prompts: PromptSet,
    slots: int,
    workers: int,
    asked: dict[int, int],
    lengths: dict[int, int],
    slo: Slo | None,
) -> Measurement:
    found, duration_s = metrics(recording, slots, slo)
    checked = audit.audit(recording)
    reasons = audit.voids(
        recording,
        checked,
        found,
        duration_s,
        slots=slots,
        workers=workers,
        asked=asked,
        prompt_tokens=lengths,
    )
    return Measurement(
        requests=recording.requests,
        audit=checked,
        metrics=found,
        duration_s=duration_s or recording.window_s,
        void=reasons,
        timeline=recording.timeline,
        prompts_digest=prompts.digest,
        window_s=recording.window_s,
    )


def spare_cpus(engine_cpus: Sequence[int]) -> list[int]:
    """CPUs of this process that are none of the engine's; empty when none is left to pin to."""
    return sorted(os.sched_getaffinity(0) - set(engine_cpus))


__all__ = [
    "ClientLost",
    "CutShort",
    "Deadlines",
    "Interrupted",
    "Measurement",
    "Progress",
    "Protocol",
    "Slo",
    "Stall",
    "measure",
    "spare_cpus",
]
