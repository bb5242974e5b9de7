"""The measuring worker's process.

It is started by :mod:`tokgate.load.processes`, which speaks with it over two pipes: the worker writes
``ready``, ``beat DONE FAILED EVENTS`` and ``end`` lines; the client writes ``go START_NS``, perhaps ``stop`` to have
what was measured so far, and closes the pipe to abort. Standard library only, nothing else is imported here.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import resource
import select
import time
from functools import partial
from pathlib import Path
from typing import Any

from tokgate.load.compiled import CompiledReader
from tokgate.load.connection import warm_stamps
from tokgate.load.events import digest
from tokgate.load.library import Unavailable, loaded
from tokgate.load.loop import Aborted, Loop
from tokgate.load.reader import Reader
from tokgate.load.record import Log
from tokgate.load.tap import Tap


def main(arguments: list[str]) -> int:
    """Run one worker on ``[JOBFOLDER, NUMBER]``; returns its exit code: 0 done, 3 aborted by the client."""
    _allow_files()
    folder, number = Path(arguments[0]), int(arguments[1])
    job = json.loads((folder / f"job{number}.json").read_text(encoding="utf-8"))
    if job["pin_cpus"]:
        os.sched_setaffinity(0, job["pin_cpus"])
    with (folder / "requests.bin").open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    with warm_stamps() as stamped:
        tap = Tap(job["address"][1][1], job["address"][0]) if job["stamps"] == "tap" else None
        read_by = dict(job["reader"])
        loop = Loop(
            job,
            data,
            partial(_reader, read_by, job["keep_output_ids"]),
            lingers=stamped,
            on_tick=tap.relieve if tap is not None else None,
        )
        facts = {"stamped": stamped, "reader": [read_by["name"], read_by["why"]]}
        return _run(loop, tap, facts, job, folder / f"result{number}.bin")


def _reader(read_by: dict[str, str], keep_output_ids: bool, poller: select.epoll) -> Reader:
    """The reader that the job names; Python's, and why, where the compiled one does not load."""
    if read_by["name"] == "c":
        try:
            return CompiledReader(loaded(Path(read_by["library"])), poller, keep_output_ids)
        except Unavailable as error:
            read_by["name"], read_by["why"] = "python", str(error)
    return Reader(poller, Log(), keep_output_ids)


def _run(loop: Loop, tap: Tap | None, facts: dict[str, Any], job: dict[str, Any], result: Path) -> int:
    try:
        loop.connect()
        print("ready", flush=True)
        # Unbuffered: what follows the line is for the loop.
        with open(0, "rb", buffering=0, closefd=False) as pipe:
            go = pipe.readline().split()
        if len(go) != 2 or go[0] != b"go":
            return 3
        gc.collect()
        gc.freeze()
        gc.disable()
        before, began = _usage(), time.monotonic()
        loop.run(int(go[1]))
        after, window_s = _usage(), time.monotonic() - began
        if tap is not None:
            tap.finish()
    except Aborted:
        return 3
    finally:
        loop.close()
        if tap is not None:
            tap.close()
    usage = {
        "window_s": window_s,
        "cpu_s": after[0] - before[0],
        "run_delay_s": None if before[1] is None or after[1] is None else after[1] - before[1],
    }
    _write(result, loop, tap, job["keep_output_ids"], {**facts, **usage})
    print("end", flush=True)
    return 0


def _allow_files() -> None:
    """An open loop may need a descriptor for each request in flight."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _usage() -> tuple[float, float | None]:
    """CPU time of this process, and its time runnable but not running (None where not reported)."""
    try:
        delay: float | None = int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        delay = None
    return time.process_time(), delay


def _peak_mib() -> float:
    """Peak memory of this process. Not ru_maxrss, which begins with the memory of the process that started this one."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) / 1024
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _write(path: Path, loop: Loop, tap: Tap | None, keep_output_ids: bool, usage: dict[str, Any]) -> None:
    requests: list[dict[str, Any]] = []
    counts = bytearray()
    loop.settle()
    beat = time.monotonic()
    for record in loop.records:
        facts = digest(record, keep_output_ids)
        counts += facts.counts.tobytes()
        requests.append(
            {
                "index": record.index,
                "outcome": facts.outcome,
                "detail": facts.detail,
                "intended_ns": record.intended_ns,
                "sent_ns": record.sent_ns,
                "ended_ns": record.ended_ns,
                "events": len(record.users),
                "fields": facts.fields,
                "server_e2e_s": facts.server_e2e_s,
                "stall": [record.stall_phase, record.waited_s, record.limit_s],
                "reconnects": record.reconnects,
                "line": loop.lines.index(record.line)
                if record.line is not None and tap is not None
                else None,
                "requested_at": record.requested_at,
            }
        )
        if time.monotonic() - beat > 0.5:
            loop.beat()
            beat = time.monotonic()
    peak_mib = _peak_mib()
    if tap is not None:
        lines = [line.port for line in loop.lines]
        usage = {**usage, "tap": {"packets": len(tap), "drops": tap.drops, "lines": lines}}
    header = {"requests": requests, "clocks": loop.clocks, "peak_mib": peak_mib, **usage}
    with path.open("wb") as file:
        file.write(json.dumps(header, separators=(",", ":")).encode() + b"\n")
        for record in loop.records:
            file.write(record.stamps)
        for record in loop.records:
            record.users.tofile(file)
        file.write(counts)
        if tap is not None:
            for record in loop.records:
                record.ends.tofile(file)
            tap.write(file)
