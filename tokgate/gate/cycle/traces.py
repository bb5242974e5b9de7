"""Profiler traces of a running server: taken while a workload's requests run, kept, and taken apart."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokgate.analysis.cycles import Cycles, cycles
from tokgate.analysis.step_parts import NoCycles
from tokgate.config.engine import EngineKind
from tokgate.config.workloads import Workload
from tokgate.errors import LoadFault, UsageFault
from tokgate.load import prompts
from tokgate.server.running import Server
from tokgate.sglang import profiling
from tokgate.sglang.trace_spans import label
from tokgate.trace.timeline import read_timeline

_WRITTEN_S = 60.0
_SETTLED_S = 5.0
_MARGIN_TOKENS = 8
_ANY = (tuple(range(prompts.FIRST_ID, prompts.FIRST_ID + 64)),)


@dataclass(frozen=True, slots=True)
class Traced:
    """The trace of one workload on one server.

    Attributes:
        files: of each rank; empty when none was written.
        cycles: of rank 0; ``None`` when there are none to be told.
        why: then, what is absent.
    """

    files: tuple[Path, ...]
    cycles: Cycles | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """What to trace.

    Attributes:
        prompts: token ids of the requests that run at once.
        steps: decode steps to record; those of prefill come on top.
        tokens_a_step: most tokens that a step can give a request.
        version, kind: of the engine.
        ranks: that write a file each.
    """

    prompts: Sequence[Sequence[int]]
    steps: int
    tokens_a_step: int
    version: str
    kind: EngineKind
    ranks: int = 1

    @property
    def body(self) -> dict[str, Any]:
        """All requests in one: sent one by one, each would bring a prefill of its own into the recorded passes, and a
        client on a busy host would leave hardly a step between them. Long enough that none ends before the last step.
        """
        new_tokens = (self.steps + 2) * self.tokens_a_step + _MARGIN_TOKENS
        sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
        return {"input_ids": [list(ids) for ids in self.prompts], "sampling_params": sampling}


def prompts_of(workload: Workload, vocabulary: int | None) -> Sequence[Sequence[int]]:
    """Token ids of as many requests as the workload has in flight at once.

    Of texts the server alone knows the ids: any others of a usual length will do.
    """
    ids = prompts.build(workload, vocabulary=vocabulary).ids or _ANY * workload.concurrency
    return ids[: workload.concurrency]


def tokens_a_step(server: Server) -> int:
    """Most tokens that a step of a server gives a request: one, and one more a draft step."""
    steps = server.server_info.get("speculative_num_steps")
    speculative = bool(server.server_info.get("speculative_algorithm"))
    return steps + 1 if speculative and isinstance(steps, int) else 1


def record(server: Server, workload: str, folder: Path, asked: Request, *, limit_s: float) -> Traced:
    """:func:`capture` on a server of the gate.

    Raises:
        Hang: it did not answer in time; it is gone.
        Exited: it died.
    """
    server.ensure_alive()
    server.flush_cache()
    began_s = time.monotonic()
    what = f"trace of {workload}"
    try:
        with server.watch(what):
            return capture(server.url, folder, asked, timeout_s=limit_s)
    except LoadFault as fault:
        server.ensure_alive()
        waited_s = time.monotonic() - began_s
        if waited_s >= limit_s:
            raise server.hang(what, waited_s, limit_s) from fault
        return Traced((), None, str(fault))


def capture(url: str, folder: Path, asked: Request, *, timeout_s: float) -> Traced:
    """Record a few steps of a server that does nothing else.

    Profiling starts before the requests come, so that the requests cannot be over before it does.

    Args:
        folder: made; must hold no other trace.

    Raises:
        LoadFault: the server does not answer, or refuses to profile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # A prefill is a pass too; a batch's prompts may take several.
    passes = asked.steps + 1 + (len(asked.prompts) > 1)
    body = profiling.request(folder, steps=passes, version=asked.version, kind=asked.kind)
    _post(url + profiling.START, body, timeout_s)
    _post(url + "/generate", asked.body, timeout_s)
    if not profiling.trace_files(folder):
        _post(url + profiling.STOP, {}, timeout_s)
    return read(_written(folder, asked.ranks))


def read(files: Sequence[Path]) -> Traced:
    """Take the first rank's trace apart."""
    if not files:
        return Traced((), None, "the server wrote no trace")
    try:
        return Traced(tuple(files), cycles(read_timeline(files[0], label)))
    except (NoCycles, UsageFault) as reason:
        return Traced(tuple(files), None, str(reason))


def _written(folder: Path, ranks: int) -> list[Path]:
    """The traces, once every rank has written its own and none grows any more; what there is after a while."""
    began = changed = time.monotonic()
    before: dict[Path, int] = {}
    while True:
        now = {path: path.stat().st_size for path in profiling.trace_files(folder)}
        at = time.monotonic()
        if now != before:
            before, changed = now, at
        elif (len(now) >= ranks and now) or (now and at - changed > _SETTLED_S) or at - began > _WRITTEN_S:
            return list(now)
        time.sleep(0.2)


def _post(address: str, body: Mapping[str, Any], timeout_s: float) -> None:
    """Raises:
    LoadFault: no answer, or another than 200.
    """
    data = json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            reply.read()
    except urllib.error.HTTPError as error:
        detail = error.read(300).decode("utf-8", "replace")
        raise LoadFault(f"{address}: HTTP {error.code}", [detail] if detail else []) from error
    except (OSError, http.client.HTTPException) as error:
        raise LoadFault(f"{address}: no answer: {error}") from error
