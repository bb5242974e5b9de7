"""Makes profiler traces in the form that torch writes, of steps whose parts are known beforehand."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEDULER = 4242


@dataclass
class Recorder:
    """Collects events of one rank. Times are microseconds."""

    rank: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 100

    def span(self, category: str, name: str, begin: float, end: float, thread: int = SCHEDULER) -> None:
        self._event(category, name, SCHEDULER, thread, begin, end - begin, {"External id": 7})

    def launch(
        self,
        at: float,
        kernels: list[tuple[str, float, float]],
        *,
        graph: bool,
        category: str = "kernel",
        stream: int = 7,
    ) -> None:
        """A call at a moment, and what it makes the device do: (name, begin, length) of each."""
        self.correlation += 1
        call = {"kernel": "cudaGraphLaunch" if graph else "cudaLaunchKernel"}.get(category, "cudaMemcpyAsync")
        tie = {"External id": 9, "correlation": self.correlation}
        self._event("cuda_runtime", call, SCHEDULER, SCHEDULER, at, 4.0, {**tie, "cbid": 211})
        for name, begin, length in kernels:
            where = {**tie, "device": self.rank, "context": 1, "stream": stream}
            self._event(category, name, self.rank, stream, begin, length, where)
        flow = {"ph": "s", "id": self.correlation, "pid": SCHEDULER, "tid": SCHEDULER, "ts": at}
        self.events.append({**flow, "cat": "ac2g", "name": "ac2g"})

    def _event(
        self, category: str, name: str, pid: int, tid: int, at: float, length: float, args: dict[str, Any]
    ) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": round(at, 3),
                "dur": round(length, 3),
                "args": args,
            }
        )

    def text(self) -> str:
        head = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150110011392}],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": 1},
        }
        lines = ",\n".join(f"  {json.dumps(event)}" for event in self.events)
        body = json.dumps(head, indent=2)[:-2]
        return f'{body},\n  "traceEvents": [\n{lines}\n  ],\n  "traceName": "x"\n}}\n'

    def write(self, path: Path) -> Path:
        path.write_bytes(gzip.compress(self.text().encode()))
        return path


@dataclass
class Shape:
    """Steps of one server. Lengths of kernels and gaps are microseconds."""

    verify: float = 2000.0
    draft: float = 300.0
    extend: float = 150.0
    sampling: float = 50.0
    gap: float = 100.0
    speculative: bool = True
    graphs: bool = True
    extend_graph: bool = True
    spans: str = "0.5.15"
    communication: float = 0.0
    cpu_late: bool = False


def steps(shape: Shape, number: int, *, prefill_at: int | None = None, rank: int = 0) -> Recorder:
    """That many steps on the device: draft, verify, sampling, draft extend, a gap (or decode, gap)."""
    made = Recorder(rank)
    now = 1_000_000.0
    for step in range(number):
        begin = now
        if step == prefill_at:
            now = _pass(made, shape, "prefill", now, 5000.0, graph=False)
        if shape.speculative:
            now = _pass(made, shape, "draft", now, shape.draft, graph=shape.graphs)
            now = _pass(made, shape, "verify", now, shape.verify, graph=shape.graphs)
            now = _loose(made, shape, now, shape.sampling)
            now = _pass(made, shape, "extend", now, shape.extend, graph=shape.graphs and shape.extend_graph)
        else:
            now = _pass(made, shape, "decode", now, shape.verify, graph=shape.graphs)
            now = _loose(made, shape, now, shape.sampling)
        if shape.spans == "0.5.15":
            made.span("user_annotation", "scheduler.run_batch", begin - 30, now)
        if shape.spans == "frames":
            name = "sglang/srt/managers/scheduler.py(3200): run_batch"
            made.span("python_function", name, begin - 30, now)
        now += shape.gap
    return made


_NAMES = {
    "0.5.15": {
        "draft": "draft",
        "verify": "step[TARGET_VERIFY bs=1]",
        "extend": "draft_extend",
        "decode": "step[DECODE bs=1]",
        "prefill": "step[EXTEND bs=1 toks=32]",
    },
    "0.5.13": {
        "verify": "step[TARGET_VERIFY bs=1]",
        "decode": "step[DECODE bs=1]",
        "prefill": "step[EXTEND bs=1 toks=32]",
        "extend": "step[DRAFT_EXTEND_V2 bs=1]",
        "draft": "step[DECODE bs=1]",
    },
    "frames": {
        "draft": "/x/sglang/srt/speculative/eagle_worker_v2.py(486): draft",
        "verify": "/x/sglang/srt/speculative/eagle_worker_v2.py(1543): verify",
        "extend": "/x/sglang/srt/speculative/eagle_worker_v2.py(760): _draft_extend_for_decode",
    },
}


def _pass(made: Recorder, shape: Shape, part: str, now: float, length: float, *, graph: bool) -> float:
    """A pass of four kernels, the third a collective where there is communication; returns its end."""
    quarter = (length - shape.communication) / 3 if part in ("verify", "decode") else length / 3
    exchange = shape.communication if part in ("verify", "decode") else 0.0
    lengths = [("gemm_" + part, quarter), ("attention_" + part, quarter)]
    lengths += [("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", exchange)] if exchange else []
    lengths += [("gemm_" + part, quarter)]
    # Launched ahead of the device, as the overlapped scheduler does; or late, when the CPU cannot keep up.
    at = now - 20 if shape.cpu_late else now - shape.gap - 400
    kernels, begin = [], now
    for name, each in lengths:
        kernels.append((name, begin, each))
        begin += each
    name = _NAMES.get(shape.spans, {}).get(part)
    if graph:
        made.launch(at, kernels, graph=True)
    else:
        for i, kernel in enumerate(kernels):
            made.launch(at + 5 * i, [kernel], graph=False)
    if name is not None:
        category = "python_function" if shape.spans == "frames" else "user_annotation"
        made.span(category, name, at - 2, at + 19)
    return begin


def _loose(made: Recorder, shape: Shape, now: float, length: float) -> float:
    made.launch(now - (5 if shape.cpu_late else 300), [("argmax_kernel", now, length)], graph=False)
    made.launch(
        now, [("Memcpy DtoH (Device -> Pinned)", now, 2.0)], graph=False, category="gpu_memcpy", stream=9
    )
    return now + length
