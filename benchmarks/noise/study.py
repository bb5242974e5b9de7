"""The runs of one server under every condition, with everything that may explain how they differ."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.noise.canary import probe
from benchmarks.noise.conditions import CANARY_OFF, CONDITIONS, PINNED, Cores, applied
from benchmarks.noise.counters import PerfCounters, counters, difference
from tokgate.config.workloads import Workload
from tokgate.host.cpu_speed import scan
from tokgate.load import prompts as prompt_sets
from tokgate.load.client import Deadlines, measure
from tokgate.server.running import Server

ROOT = Path(__file__).parents[2]


class Study:
    """The runs of one server.

    Args:
        name: of the model, in file names.
        server: running.
        workload: of one run.
        out: folder.
        env: the engine's, which may name its GPU.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        workload: Workload,
        vocabulary: int | None,
        out: Path,
        env: Mapping[str, str],
    ) -> None:
        self.name = name
        self._server = server
        self._workload = workload
        self._prompts = prompt_sets.build(workload, vocabulary=vocabulary)
        self._out = out
        self._env = env
        self._cores = Cores()
        self._main = scheduler(server)
        self._perf = PerfCounters(self._main) if self._main is not None else None
        self.runs = 0
        self._probed = self._probe()
        self.left_out: dict[str, str] = {}
        if not self._cores.enough:
            for condition in PINNED:
                self.left_out[condition] = f"{len(self._cores.cores)} cores are too few to pin to"

    def facts(self) -> dict[str, Any]:
        return {
            "model": self.name,
            "main": self._main,
            "processes": {p.pid: " ".join(_command(p.pid))[:120] for p in self._server.processes()},
            "cores": [sorted(core) for core in self._cores.cores],
            "topology_told": self._cores.told,
            "probe": self._probed,
            "perf_refused": {} if self._perf is None else self._perf.refused,
            "workload": [self._workload.requests, self._workload.output_tokens],
        }

    def _probe(self) -> dict[str, float]:
        """Which CPUs share a core, as told by what a busy loop on one does to the other; x the time of fixed work."""
        canary, count = self._cores.canary, len(self._cores.all)
        if not self._cores.enough:
            return {}
        half = (canary + count // 2) % count
        others = {
            "the CPU's neighbour": canary ^ 1,
            "the CPU half of all away": half,
            "another core": half ^ 4,
        }
        return probe(canary, {name: cpu for name, cpu in others.items() if cpu in self._cores.all})

    def rounds(self, until_s: float, seed: int = 1) -> None:
        """Runs until the clock says so; a condition that this host refuses is left out from then on."""
        draw = random.Random(seed)
        looks = self._out / f"looks-{self.name}.jsonl"
        with Sampler(looks, self._main or 0, self._cores.canary, self._env) as sampler:
            self._rounds(until_s, draw, sampler)

    def _rounds(self, until_s: float, draw: random.Random, sampler: Sampler) -> None:
        self._one("warm-up", sampler, write=False)
        longest = 0.0
        while True:
            order = [c for c in CONDITIONS if c not in self.left_out]
            draw.shuffle(order)
            for condition in order:
                began = time.monotonic()
                if began + longest > until_s:
                    return
                try:
                    self._one(condition, sampler)
                except OSError as error:
                    self.left_out[condition] = str(error)
                longest = max(longest, time.monotonic() - began)

    def _one(self, condition: str, sampler: Sampler, *, write: bool = True) -> None:
        server = self._server
        server.ensure_alive()
        server.flush_cache()
        log_at = server.log_path.stat().st_size
        pids = [process.pid for process in server.processes()]
        quiet = {"unwatched": sampler.paused, CANARY_OFF: sampler.elsewhere}.get(
            condition, contextlib.nullcontext
        )()
        scanned = scan(self._cores.all)
        with quiet, applied(condition, server, self._main, self._cores, scanned) as client:
            before = counters(pids, self._main) | (self._perf.read() if self._perf else {})
            began = time.monotonic()
            got = measure(server.url, self._workload, self._prompts, deadlines=Deadlines(), pin_cpus=client)
            took = time.monotonic() - began
            after = counters(pids, self._main) | (self._perf.read() if self._perf else {})
        if not write:
            return
        line = got.timeline
        row = {
            "condition": condition,
            "run": self.runs,
            "at_s": began,
            "duration_s": got.duration_s,
            "interval_s": took,
            "metrics": got.metrics,
            "void": [reason.cause for reason in got.void],
            "lag_p99_ms": None if got.audit.lag_p99_s is None else 1e3 * got.audit.lag_p99_s,
            "client_cpu_s": got.audit.client_cpu_s,
            "client_run_delay_s": got.audit.client_run_delay_s,
            "merged": got.audit.merged_read_share,
            "moved": difference(before, after),
            "scanned_ms": {cpu: round(ms, 4) for cpu, ms in scanned.items()},
            "samples": sampler.since(began),
            "log_tok_s": _throughputs(server.log_path, log_at),
            "t_us": [round(1e6 * float(t)) for t in line.t_s],
            "owner": [int(owner) for owner in line.owner],
        }
        with (self._out / f"runs-{self.name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.runs += 1


class Sampler:
    """The process that looks at GPU and CPU while runs are measured. A context manager.

    Args:
        path: its looks, one JSON object a line.
        main: process id of the scheduler; 0 when not known.
        canary: spare CPU of the fixed work; -1: any.
        env: the engine's: its GPU is looked at.
    """

    def __init__(self, path: Path, main: int, canary: int, env: Mapping[str, str]) -> None:
        self._path = path
        self._at = 0
        command = [sys.executable, "-m", "benchmarks.noise.sampler", str(path), str(main), str(canary)]
        # Of the engine's environment its GPU alone: its PYTHONPATH is for its own interpreter.
        environment = {**os.environ, **{k: v for k, v in env.items() if k == "CUDA_VISIBLE_DEVICES"}}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment)
        until = time.monotonic() + 10
        while not self._lines() and self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)

    def _lines(self) -> list[str]:
        """Whole lines that were not read yet."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode().splitlines()

    def since(self, began_s: float) -> list[dict[str, float]]:
        """Looks after a moment of CLOCK_MONOTONIC."""
        return [look for line in self._lines() if (look := json.loads(line))["t_s"] >= began_s]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nobody looks while the body runs."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Without the canary on the scheduler's CPU while the body runs."""
        self._process.send_signal(signal.SIGUSR1)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGUSR2)

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._path.unlink(missing_ok=True)


def scheduler(server: Server) -> int | None:
    """Process id of the scheduler: by its title, else the process that used most CPU time."""
    titled = [p.pid for p in server.processes() if "scheduler" in " ".join(_command(p.pid)).lower()]
    if titled:
        return titled[0]

    def used(pid: int) -> float:
        return counters([pid], pid).get("main_cpu_s", 0.0)

    return max((p.pid for p in server.processes()), key=used, default=None)


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _throughputs(log: Path, since: int) -> list[float]:
    """Generation throughput as the server's own log says, of the lines of this run."""
    with log.open("rb") as file:
        file.seek(since)
        text = file.read().decode(errors="replace")
    found = []
    for part in text.split("gen throughput (token/s): ")[1:]:
        try:
            found.append(float(part.split(",")[0].split()[0]))
        except (ValueError, IndexError):
            continue
    return found
