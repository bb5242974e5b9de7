"""``tokgate.load`` beside ``sglang.bench_serving`` on the same servers.

    python -m benchmarks.serving --engine ENGINE.yaml --target DIR --draft DIR --out OUTDIR --budget-s 280

Starts a baseline and an EAGLE-3 server at the same time (profiles of ``perf_tests/profiles.yaml``: running
requests and captured batches up to 64 on both), and measures them one at a time at 1, 8 and 64 concurrent
requests, the two tools in turn on the same prompts, as many rounds as the time allows. The table has three lines
a metric: tokgate's figure; tokgate's data reckoned by bench_serving's definition; bench_serving's figure. The first
two differ by definition, the last two by what the clients did. Exits 0 only when every cell was measured by both
tools and the two servers are comparable.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.serving.peer import (
    Driver,
    arguments,
    by_their_definitions,
    ours,
    theirs,
    write_dataset,
)
from benchmarks.serving.table import table, valid, void_notes
from tokgate import __version__
from tokgate.config.engine import Engine, load_engine, resolve_engine
from tokgate.config.gate import PhaseFloors
from tokgate.config.profiles import Profile, load_profiles
from tokgate.config.workloads import Prompts, Workload
from tokgate.errors import TokgateError
from tokgate.gate.comparable import obstacles, remarks
from tokgate.host import ports
from tokgate.load.client import Deadlines, measure
from tokgate.load.prompts import PromptSet, build
from tokgate.load.sample import write_json
from tokgate.server import probe
from tokgate.server.launch import start
from tokgate.server.running import Server
from tokgate.server.spec import LaunchSpec
from tokgate.sglang.flags import server_arguments
from tokgate.sglang.http import resolved

PROFILES = Path(__file__).parents[2] / "perf_tests" / "profiles.yaml"
NAMES = {"gpu": ("baseline", "eagle3-graphs"), "cpu": ("baseline-eager", "eagle3-eager")}
# Two servers on one GPU: each takes what it needs, not a share of what the other has not taken yet.
TOTAL_TOKENS = 131_072
END_S = 20.0
PATIENT = PhaseFloors(
    spawn_s=60, imports_s=240, weights_s=240, kv_cache_s=120, capture_s=240, warmup_s=120, first_token_s=120
)


class Comparison:
    """The experiment. What it has seen so far is always in ``OUTDIR/serving.json``."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out: Path = options.out
        self.deadline = time.monotonic() + options.budget_s
        self.engine = _engine(options.engine)
        self.peer = _engine(options.peer_engine) if options.peer_engine else self.engine
        catalogue = load_profiles(options.profiles)
        names = options.names or NAMES["cpu" if self.engine.kind == "cpu" else "gpu"]
        self.profiles = [catalogue.get(name) for name in names]
        self.servers: dict[str, Server] = {}
        self.cells: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}
        self.cost_s: dict[str, float] = {}

    def left_s(self) -> float:
        """Seconds left for measuring; the servers' end is not in it."""
        left_s: float = self.deadline - time.monotonic() - END_S
        return left_s

    def save(self) -> None:
        """Write everything seen so far."""
        facts = {"tokgate": __version__, **self.facts, "notes": self.notes, "cells": self.cells}
        write_json(self.out / "serving.json", facts)

    def start(self, driver: Driver) -> None:
        """Start all servers and bench_serving's process at the same time."""
        threads = [threading.Thread(target=self._start, args=(p,), daemon=True) for p in self.profiles]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self.left_s()))
        for profile in self.profiles:
            if profile.name not in self.servers:
                self.notes.append(f"{profile.name}: no server")
        self.facts["start_s"] = time.monotonic() - began
        driver.ready(max(1.0, self.left_s()))
        self.facts |= {
            "engine": self.engine.name,
            "sglang": self.engine.version,
            "bench_serving": driver.version,
            "same_prompts": driver.takes_prompts,
        }
        known = {name: resolved(server.server_info) for name, server in self.servers.items()}
        self.facts["resolved"] = known
        if len(known) == 2:
            one, other = known.values()
            self.facts["incomparable"] = obstacles(one, other)
            self.facts["remarks"] = remarks(one, other)

    def _start(self, profile: Profile) -> None:
        options, engine = self.options, self.engine
        profile = replace(profile, max_total_tokens=profile.max_total_tokens or TOTAL_TOKENS)
        port = ports.free_port()
        made = server_arguments(
            profile,
            version=engine.version,
            kind=engine.kind,
            target=str(options.target),
            draft=str(options.draft) if profile.speculation else None,
            host="127.0.0.1",
            port=port,
        )
        own: tuple[str, ...] = ()
        env = {**engine.env, **made.env, **profile.env}
        paths = [*engine.pythonpath]
        if engine.kind == "emulated":
            own = ("--scenario", engine.scenario or "founding", "--emulated-version", engine.version)
            paths.append(str(Path(__file__).parents[2]))
        if paths:
            env["PYTHONPATH"] = os.pathsep.join(paths)
        spec = LaunchSpec(
            profile=profile,
            engine=engine,
            argv=(engine.python, *engine.launcher, *made.argv, *own),
            env=env,
            host="127.0.0.1",
            port=port,
            log_path=self.out / "logs" / f"{profile.name}.log",
            forensics_dir=self.out / "logs",
            deadlines=PATIENT,
        )
        try:
            self.servers[profile.name] = start(spec)
        except TokgateError as error:
            self.notes.append(f"{profile.name}: {error.headline}")

    def measure(self, driver: Driver) -> None:
        """Rounds over all cells; in each the two tools in turn, every second round the other way about."""
        plans = {c: self._plan(c) for c in self.options.concurrency}
        info_s = {name: _info_s(server) for name, server in self.servers.items()}
        self.facts["server_info_s"] = info_s
        for number in range(self.options.rounds):
            for c, (plan, prompts, dataset) in plans.items():
                for name, server in self.servers.items():
                    key = f"{name} c={c}"
                    cell = self.cells.setdefault(key, {"tokgate": [], "as_theirs": [], "bench_serving": []})
                    if self.left_s() < self.cost_s.get(key, 10.0) * 1.2:
                        self.notes.append(f"{key}: round {number + 1} left out, no time")
                        continue
                    began = time.monotonic()
                    steps: list[Callable[[], None]] = [
                        partial(self._tokgate, server, plan, prompts, cell, info_s[name]),
                        partial(self._bench_serving, driver, server, dataset, plan, cell),
                    ]
                    for step in steps if number % 2 == 0 else reversed(steps):
                        try:
                            step()
                        except TokgateError as error:
                            self.notes.append(f"{key}: {' | '.join(str(error).splitlines()[:4])}")
                    self.cost_s[key] = time.monotonic() - began
                    self.save()

    def _plan(self, concurrency: int) -> tuple[Workload, PromptSet, Path]:
        plan = Workload(
            f"bs{concurrency}",
            concurrency,
            max(self.options.requests_floor, 2 * concurrency),
            self.options.output_tokens,
            prompts=Prompts(length_tokens=self.options.prompt_tokens),
        )
        prompts = build(plan, self.options.vocabulary)
        dataset = self.out / f"prompts-{concurrency}.jsonl"
        write_dataset(dataset, prompts.ids or (), plan.output_tokens)
        return plan, prompts, dataset

    def _limits(self) -> Deadlines:
        left_s = max(1.0, self.left_s())
        return Deadlines(
            first_token_s=left_s, gap_s=left_s, request_s=left_s, drain_s=left_s, worker_s=left_s
        )

    def _tokgate(
        self, server: Server, plan: Workload, prompts: PromptSet, cell: dict[str, Any], info_s: float
    ) -> None:
        server.flush_cache()
        warm = replace(plan, requests=1, concurrency=1, output_tokens=min(32, plan.output_tokens))
        measure(server.url, warm, build(warm, self.options.vocabulary), deadlines=self._limits())
        found = measure(server.url, plan, prompts, deadlines=self._limits())
        void = [reason.message for reason in found.void]
        tokens = sum(r.completion_tokens or 0 for r in found.requests)
        cpu_us = found.audit.client_cpu_s / max(1, sum(r.steps for r in found.requests)) * 1e6
        cell["tokgate"].append({**ours(found), "tokens": tokens, "void": void, "cpu_us_per_chunk": cpu_us})
        cell["as_theirs"].append(by_their_definitions(found, info_s) if found.metrics else {})

    def _bench_serving(
        self, driver: Driver, server: Server, dataset: Path, plan: Workload, cell: dict[str, Any]
    ) -> None:
        given = dataset if driver.takes_prompts else None
        argv = arguments(server.url, self.options.tokenizer or self.options.target, plan, given)
        result = driver.run(argv, max(1.0, self.left_s()))
        cell["bench_serving"].append({**theirs(result), "raw": result})

    def end(self) -> None:
        """Stop every server; keep the logs, packed."""
        threads = [threading.Thread(target=server.stop) for server in self.servers.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for path in [*self.out.glob("logs/*.log"), *self.out.glob("bench_serving/*.log")]:
            with path.open("rb") as source, gzip.open(f"{path}.gz", "wb") as packed:
                shutil.copyfileobj(source, packed)
            path.unlink()

    def seen(self) -> bool:
        """Whether every cell was measured by both tools, validly, on servers that may be compared."""
        wanted = len(self.profiles) * len(self.options.concurrency)
        whole = [c for c in self.cells.values() if c["bench_serving"] and valid(c)]
        return len(whole) == wanted and self.facts.get("incomparable") == []


def _info_s(server: Server) -> float:
    times = []
    for _ in range(3):
        began = time.monotonic()
        probe.get(server.host, server.port, "/server_info", 10)
        times.append(time.monotonic() - began)
    return statistics.median(times)


def _engine(name: str) -> Engine:
    path = Path(name)
    return load_engine(path) if path.is_file() else resolve_engine(name, Path("environments"))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    add = parser.add_argument
    add("--engine", required=True, help="engine file, or emulated:SCENARIO")
    add("--peer-engine", help="engine file whose environment runs bench_serving; default: --engine")
    add("--target", type=Path, required=True)
    add("--draft", type=Path, required=True)
    add("--tokenizer", type=Path, help="for bench_serving; default: --target")
    add("--out", type=Path, required=True)
    add("--budget-s", type=float, default=280)
    add("--profiles", type=Path, default=PROFILES)
    add(
        "--names", nargs="*", help="profiles to run; default: baseline and EAGLE-3 with graphs (CPU: without)"
    )
    add("--concurrency", type=int, nargs="*", default=[1, 8, 64])
    add("--rounds", type=int, default=3)
    add("--output-tokens", type=int, default=256)
    add("--prompt-tokens", type=int, default=128)
    add("--requests-floor", type=int, default=4, help="fewest requests of a run; else 2 per concurrent one")
    add("--vocabulary", type=int, help="ids stay below it, and below 8192 in any case")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    options = _options(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        comparison = Comparison(options)
    except TokgateError as error:
        print(f"benchmarks.serving: {error}", file=sys.stderr)
        return error.exit_code
    driver = Driver(comparison.peer, options.out / "bench_serving")
    try:
        comparison.start(driver)
        comparison.save()
        comparison.measure(driver)
    except TokgateError as error:
        comparison.notes.append(str(error))
    finally:
        driver.close()
        comparison.end()
        comparison.facts["whole_s"] = time.monotonic() - began
        comparison.save()
    for line in table(comparison.cells):
        print(line)
    comparison.notes += void_notes(comparison.cells)
    for note in [
        *(f"INCOMPARABLE: {o}" for o in comparison.facts.get("incomparable", ())),
        *comparison.notes,
    ][:6]:
        print(note)
    words = "all seen" if comparison.seen() else "NOT ALL SEEN"
    print(f"{words}; {time.monotonic() - began:.0f} s; {options.out}/serving.json")
    return 0 if comparison.seen() else 1


if __name__ == "__main__":
    sys.exit(main())
