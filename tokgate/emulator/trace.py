"""`/start_profile`: a trace in the form of torch's profiler, from the passes that really ran.

Chrome trace events; times in microseconds. Kernels keep their nominal length, what is left of a pass is
idle: the scatter of a run lies between kernels, as it mostly does on real hosts.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

from tokgate.emulator.settings import Settings

CPU_THREAD, GPU_STREAM = 1, 7
# Kind of captured graph -> part of a step.
PARTS = {
    "target-decode": "decode",
    "target-verify": "verify",
    "draft-decode": "draft",
    "draft-extend": "draft_extend",
}
KERNELS = {
    "decode": "emulated_decode_forward",
    "verify": "emulated_target_verify_forward",
    "draft": "emulated_draft_forward",
    "draft_extend": "emulated_draft_extend_forward",
    "prefill": "emulated_prefill_forward",
}
# The parts of a step in the order in which the scheduler launches them.
ORDER = ("prefill", "decode", "draft", "verify", "draft_extend")
MODES = {
    "decode": "DECODE",
    "verify": "TARGET_VERIFY",
    "draft_extend": "DRAFT_EXTEND_V2",
    "prefill": "EXTEND",
}
# First patch release of 0.5 with spans of forward passes, and with spans of speculation and the scheduler.
PASS_SPANS_SINCE, ALL_SPANS_SINCE = 13, 15
LAUNCH_US = 8.0


class Tracer:
    """Collects passes until ``num_steps`` of them are done.

    Args:
        output_dir: where the trace goes; created.
        num_steps: passes to record, ``None`` until stopped.
        rank: part of the file's name.
        kernels_ms: parts of a decode step with their nominal lengths.
        graphs: parts that are launched as one CUDA graph; the others launch kernel by kernel.
        patch: third number of the SGLang version: which spans there are.
    """

    def __init__(
        self,
        output_dir: str,
        num_steps: int | None,
        rank: int,
        kernels_ms: dict[str, float],
        graphs: set[str],
        patch: int,
    ) -> None:
        self.output_dir = output_dir
        self.profile_id = f"{time.time()}"
        self._left = num_steps
        self._rank = rank
        self._kernels_ms = kernels_ms
        self._graphs = graphs
        self._patch = patch
        self._events: list[dict[str, Any]] = []
        self._correlation = 0

    def add(self, prefill: bool, replayed: bool, batch: int, begin_s: float, end_s: float) -> bool:
        """Record a pass, replayed from graphs or not; returns whether the trace is complete."""
        lengths = {"prefill": (end_s - begin_s) * 1e3} if prefill else self._kernels_ms
        at_us, end_us = begin_s * 1e6, end_s * 1e6
        call_us = at_us
        for name in ORDER:
            if not lengths.get(name):
                continue
            length_us = min(lengths[name] * 1e3, max(end_us - at_us, 1.0))
            self._correlation += 1
            launch = "cudaGraphLaunch" if replayed and name in self._graphs else "cudaLaunchKernel"
            self._span("cuda_runtime", launch, call_us, LAUNCH_US, self._correlation)
            if (span := self._span_name(name, batch)) is not None:
                self._span("user_annotation", span, call_us - 1, LAUNCH_US + 2, 0)
            self._span("kernel", KERNELS[name], at_us, length_us, self._correlation)
            at_us += length_us
            call_us += 2 * LAUNCH_US
        if self._patch >= ALL_SPANS_SINCE:
            self._span(
                "user_annotation", "scheduler.run_batch", begin_s * 1e6 - 2, call_us - begin_s * 1e6, 0
            )
        if self._left is not None:
            self._left -= 1
        return self._left == 0

    def _span_name(self, part: str, batch: int) -> str | None:
        """How this version marks a part; ``None`` when it does not."""
        if self._patch >= ALL_SPANS_SINCE and part in ("draft", "draft_extend"):
            return part
        if self._patch < PASS_SPANS_SINCE or part not in MODES:
            return None
        return f"step[{MODES[part]} bs={batch}]"

    def _span(self, category: str, name: str, at_us: float, length_us: float, correlation: int) -> None:
        on_gpu = category == "kernel"
        arguments: dict[str, Any] = {"correlation": correlation} if correlation else {}
        if on_gpu:
            arguments |= {"device": self._rank, "stream": GPU_STREAM}
        self._events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": self._rank if on_gpu else os.getpid(),
                "tid": GPU_STREAM if on_gpu else CPU_THREAD,
                "ts": round(at_us, 3),
                "dur": round(length_us, 3),
                "args": arguments,
            }
        )

    def write(self) -> Path:
        """Write the trace and return its path.

        Raises:
            OSError: the folder cannot be written.
        """
        folder = Path(self.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.profile_id}-TP-{self._rank}.trace.json.gz"
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": self._rank, "name": "emulated GPU"}],
            "traceName": str(path),
            "traceEvents": self._events,
        }
        path.write_bytes(gzip.compress(json.dumps(document).encode(), compresslevel=4))
        return path


def launched_graphs(settings: Settings) -> set[str]:
    """Parts of a step that run as one CUDA graph each: 1 without speculation, 2 or 3 with it."""
    return {PARTS[kind] for kind in settings.captures}
