"""Parts of ``benchmarks.tensor_parallel`` that start a server of several ranks and look at it, or plant a fault."""

from __future__ import annotations

import gzip
import json
import signal
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.tensor_parallel.host import PROFILE_ENV, SLACK_MIB, Host, Plant, post, rank_of, used_mib
from tokgate.config.workloads import Prompts, Workload
from tokgate.errors import Hang, TokgateError
from tokgate.gate.modelstore import vocabulary
from tokgate.host import proc
from tokgate.load import prompts as prompt_sets
from tokgate.load.client import Deadlines, Stall, measure
from tokgate.server.oddity import only_first
from tokgate.server.running import Server

SLOW_S = 8.0
TRACE_STEPS = 20
CAPTURE_LIMIT_S = 30.0
GAP_LIMIT_S = 8.0
DECODE = Workload("decode", 4, 4, 3000, Prompts(length_tokens=64))


def look(host: Host, quiet: threading.Event) -> None:
    """Rank table, truth of the environment, versions, a trace.

    Args:
        quiet: set when nothing else runs on these GPUs: the trace waits for it, if there is time.
    """
    profile = host.profile("tp2-eagle3-graphs", env=PROFILE_ENV)
    server = host.start(profile, "look")
    host.look_start_s = server.startup_s
    try:
        host.write("look", _facts(server))
        _table(host, server)
        _environment(host, server)
        quiet.wait(max(0.0, min(90.0, host.left_s - 120)))
        _trace(host, server)
    finally:
        server.stop()
        host.keep(server.log_path, "look")


def slow_rank(host: Host) -> None:
    """One rank is suspended before the captures and goes on: it must be named, not the one that waited.

    Then a rank of the same server is suspended for good in decode.
    """
    rank = host.ranks[-1]
    plant = Plant(rank, rf" {rank}\] KV Cache is allocated", SLOW_S)
    floors = {"capture_s": 120.0, "kv_cache_s": 120.0, "weights_s": 120.0}
    server = host.start(host.profile("tp2-eagle3-graphs"), "slow-rank", plant=plant, **floors)
    try:
        odd = server.odd_captures
        host.write("slow-rank", {**_facts(server), "suspended": str(plant.suspended), "seconds": SLOW_S})
        if plant.suspended is None:
            host.say("slow-rank", "a rank could be suspended before its captures", False)
        named = [line for line in odd if line.startswith(f"{rank} began")]
        host.say(
            "slow-rank", f"{rank} is named as late", bool(named), (named or odd or ["nothing is flagged"])[0]
        )
        blamed = [line for line in odd if line.startswith("TP0 took") and "GB" not in line]
        host.say("slow-rank", "the rank that waited is not blamed", not blamed, "; ".join(blamed))
        _hang_in_decode(host, server)
    finally:
        server.stop()
        host.keep(server.log_path, "slow-rank")


def hang_in_capture(host: Host) -> None:
    """One rank is suspended for good in a capture."""
    rank = host.ranks[-1]
    # After the first batch size: kernels are compiled then, and no lock of a compiler is held by who is suspended.
    plant = Plant(rank, r"Capturing batches[^\r\n]*\| +[1-9]\d*/\d+ \[", None)
    try:
        server = host.start(
            host.profile("tp2-eagle3-graphs"), "hang-capture", plant=plant, capture_s=CAPTURE_LIMIT_S
        )
    except Hang as hang:
        _hang(host, "hang-capture", hang, rank)
        host.say("hang-capture", "the phase is that capture", "graph capture" in hang.headline, hang.phase)
    except TokgateError as error:
        host.say("hang-capture", "HANG", False, error.headline)
    else:
        server.stop()
        host.say("hang-capture", "HANG", False, "the server became ready")
    host.keep(host.out / "raw" / "hang-capture.log", "hang-capture")


def _facts(server: Server) -> dict[str, Any]:
    return {
        "phases_s": [[phase.name, phase.seconds] for phase in server.phases],
        "captures": [asdict(capture) for capture in server.captures],
        "odd": server.odd_captures,
        "overrides": [str(item) for item in server.resolved()],
        "nccl_in_log": server.nccl_version,
        "libraries": server.libraries,
        "variables": [asdict(item) for item in server.variables],
        "environments": server.environments,
        "processes": [process.name for process in server.processes()],
        "gpu_mib": used_mib(),
    }


def _table(host: Host, server: Server) -> None:
    rows: dict[str, dict[str, Any]] = {}
    for capture in server.captures:
        rows.setdefault(capture.kind, {})[capture.rank] = capture
    verify = rows.get("target-verify", {})
    took = ", ".join(f"{rank} {c.seconds} s {c.gb} GB" for rank, c in verify.items())
    host.say("ranks", "a target capture of every rank", sorted(verify) == host.ranks, took)
    drafts = {kind: row for kind, row in rows.items() if kind.startswith("draft")}
    alone = bool(drafts) and all(only_first(kind, row) for kind, row in drafts.items())
    said = ", ".join(f"{kind} on {'+'.join(row)}" for kind, row in drafts.items())
    host.say("ranks", "draft captures are printed by rank 0 alone", alone, said)
    # Memory readings around a capture are shared with the servers beside this one: only times count here.
    flagged = [line for line in server.odd_captures if " GB " not in line]
    host.say("ranks", "control: no rank is flagged", not flagged, "; ".join(flagged))
    versions = {name: own for name, own in server.libraries.items() if "scheduler" in name}
    said = "; ".join(f"{name}: {own.get('NCCL')}, torch {own.get('torch')}" for name, own in versions.items())
    whole = len(versions) == host.tp and all({"NCCL", "torch"} <= set(own) for own in versions.values())
    on_gpu = host.engine.kind == "gpu"
    host.say("versions", "NCCL and torch that each rank loaded", whole if on_gpu else None, said)
    host.say(
        "versions",
        "NCCL's version in the log",
        bool(server.nccl_version) if on_gpu else None,
        server.nccl_version,
    )


def _environment(host: Host, server: Server) -> None:
    found = {item.name: item for item in server.variables}
    wanted = {
        "NCCL_DEBUG": ("WARN", "shell", None),
        "NCCL_PROTO": ("LL", "profile", None),
        "CUDA_DEVICE_MAX_CONNECTIONS": ("8", "SGLang", "1"),
        "NCCL_CUMEM_ENABLE": ("0", "SGLang", None),
    }
    for name, (value, by, given) in wanted.items():
        item = found.get(name)
        ok = item is not None and (item.value, item.by, item.given, item.workers) == (value, by, given, ())
        host.say("environment", f"{name} on every rank", ok, item)
    nvls = found.get("NCCL_NVLS_ENABLE")
    host.say("environment", "NVLink multicast stays off", nvls is not None and nvls.value == "0", nvls)


def _trace(host: Host, server: Server) -> None:
    folder = (host.out / "trace").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    asked = {"output_dir": str(folder), "num_steps": TRACE_STEPS, "activities": ["CPU", "GPU"]}
    status = post(f"{server.url}/start_profile", asked, 30.0)
    sampling = {"max_new_tokens": 400, "ignore_eos": True, "temperature": 0}
    post(f"{server.url}/generate", {"input_ids": list(range(100, 164)), "sampling_params": sampling}, 60.0)
    until = time.monotonic() + min(40.0, max(5.0, host.left_s - 60))
    while len(files := sorted(folder.glob("*.trace.json.gz"))) < host.tp and time.monotonic() < until:
        time.sleep(0.2)
    time.sleep(1.0)
    shares = {file.name: nccl_share(file) for file in files}
    host.write("trace-nccl-share", shares)
    ok = len(files) == host.tp if host.engine.kind == "gpu" else None
    host.say("trace", f"a trace of every rank (start_profile answered {status})", ok, ", ".join(shares))
    said = "; ".join(f"{own.get('nccl_ms')} of {own.get('span_ms')} ms" for own in shares.values())
    some = bool(shares) and all(own.get("nccl_kernels", 0) for own in shares.values())
    host.say("trace", "NCCL kernels in it", some if host.engine.kind == "gpu" else None, said)


def nccl_share(file: Path) -> dict[str, float]:
    """Kernels in a trace: how long NCCL's ran, of the span from the first kernel to the last, ms."""
    try:
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError):
        return {}
    kernels = [e for e in events if e.get("ph") == "X" and e.get("cat") == "kernel"]
    if not kernels:
        return {"kernels": 0}
    own = [e for e in kernels if "nccl" in e["name"].lower()]
    span_us = max(e["ts"] + e["dur"] for e in kernels) - min(e["ts"] for e in kernels)
    nccl_us = sum(e["dur"] for e in own)
    return {
        "kernels": len(kernels),
        "nccl_kernels": len(own),
        "nccl_ms": round(nccl_us / 1e3, 3),
        "span_ms": round(span_us / 1e3, 3),
        "share": round(nccl_us / span_us, 4),
    }


def _hang_in_decode(host: Host, server: Server) -> None:
    rank = host.ranks[-1]
    victim = rank_of(server.spec.env["TRIAL"], rank)
    prompts = prompt_sets.build(DECODE, vocabulary=vocabulary(Path(host.target)))
    if victim is None:
        host.say("hang-decode", f"{rank}'s scheduler is there to be suspended", False)
        return
    timer = threading.Timer(2.0, proc.send, (victim, signal.SIGSTOP))
    timer.start()
    limits = Deadlines(first_token_s=30.0, gap_s=GAP_LIMIT_S, request_s=90.0, drain_s=90.0)
    try:
        measure(server.url, DECODE, prompts, deadlines=limits)
    except Stall as stall:
        fault = server.hang(f"{stall.phase} of {DECODE.name}", stall.waited_s, stall.limit_s)
        if isinstance(fault, Hang):
            _hang(host, "hang-decode", fault, rank)
        else:
            host.say("hang-decode", "HANG", False, fault.headline)
    else:
        host.say("hang-decode", "HANG", False, "the run ended, nothing hung")
    finally:
        timer.cancel()


def _hang(host: Host, part: str, hang: Hang, rank: str) -> None:
    """What a hang of one rank must say."""
    text = "\n".join(
        ["HANG " + hang.headline, *(f"  {line}" for line in hang.details), *map(str, hang.files)]
    )
    (host.out / f"{part}.txt").write_text(text + "\n", encoding="utf-8")
    host.say(part, "HANG within 1.5 x its limit", hang.waited_s <= 1.5 * hang.limit_s, hang.headline)
    cause = [line for line in hang.details if "stopped by a signal" in line and f"scheduler_{rank}" in line]
    host.say(part, f"{rank} is named as the cause", bool(cause), (cause or ["no"])[0])
    stacks = [line for line in hang.details if line.startswith("stack of") and "scheduler_TP" in line]
    with_rank = [line for line in stacks if f"scheduler_{rank}" in line]
    host.say(
        part,
        f"stacks of all ranks, {rank}'s too",
        len(stacks) == host.tp and bool(with_rank),
        (with_rank or stacks or ["none"])[0],
    )


def memory_back(host: Host, before: dict[int, int] | None) -> None:
    """Every GPU has what it had before the first server, once all have ended."""
    if before is None:
        host.say("memory", "all ranks' memory is back", None, "no NVML here")
        return
    until = time.monotonic() + 10
    now = used_mib() or {}
    while any(now.get(i, 1 << 20) > before[i] + SLACK_MIB for i in before) and time.monotonic() < until:
        time.sleep(0.25)
        now = used_mib() or {}
    ok = all(now.get(i, 1 << 20) <= before[i] + SLACK_MIB for i in before)
    host.say(
        "memory",
        "all ranks' memory is back",
        ok,
        ", ".join(f"GPU {i}: {before[i]} -> {now.get(i)} MiB" for i in before),
    )
