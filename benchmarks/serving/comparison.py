"""The experiment of ``benchmarks.serving``: rounds over cells, each measured by the two tools in turn."""

from __future__ import annotations

import argparse
import gzip
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.serving.fleet import Fleet
from benchmarks.serving.peer import (
    Driver,
    arguments,
    by_their_definitions,
    ours,
    theirs,
    write_dataset,
)
from benchmarks.serving.table import valid
from tokgate import __version__
from tokgate.config.engine import Engine, load_engine, resolve_engine
from tokgate.config.profiles import load_profiles
from tokgate.config.workloads import Prompts, Workload
from tokgate.errors import TokgateError
from tokgate.gate.comparable import obstacles, remarks
from tokgate.load.client import Deadlines, measure
from tokgate.load.prompts import PromptSet, build
from tokgate.load.sample import write_json
from tokgate.server import probe
from tokgate.server.running import Server
from tokgate.sglang.http import resolved

NAMES = {"gpu": ("baseline", "eagle3-graphs"), "cpu": ("baseline-eager", "eagle3-eager")}
END_S = 20.0


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
        profiles = [catalogue.get(name) for name in names]
        self.fleet = Fleet(self.engine, profiles, options, self.out / "logs")
        self.cells: dict[str, dict[str, Any]] = {}
        self.notes = self.fleet.notes
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
        began = time.monotonic()
        self.fleet.start(self.left_s())
        self.facts["start_s"] = time.monotonic() - began
        driver.ready(max(1.0, self.left_s()))
        self.facts |= {
            "engine": self.engine.name,
            "sglang": self.engine.version,
            "bench_serving": driver.version,
            "same_prompts": driver.takes_prompts,
        }
        known = {name: resolved(server.server_info) for name, server in self.fleet.running.items()}
        self.facts["resolved"] = known
        if len(known) == 2:
            one, other = known.values()
            self.facts["incomparable"] = obstacles(one, other)
            self.facts["remarks"] = remarks(one, other)

    def measure(self, driver: Driver) -> None:
        """Rounds over all cells; in each the two tools in turn, every second round the other way about."""
        plans = {c: self._plan(c) for c in self.options.concurrency}
        info_s = {name: _info_s(server) for name, server in self.fleet.running.items()}
        self.facts["server_info_s"] = info_s
        for number in range(self.options.rounds):
            for c, (plan, prompts, dataset) in plans.items():
                for name, server in self.fleet.running.items():
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
        self.fleet.stop()
        for path in [*self.out.glob("logs/*.log"), *self.out.glob("bench_serving/*.log")]:
            with path.open("rb") as source, gzip.open(f"{path}.gz", "wb") as packed:
                shutil.copyfileobj(source, packed)
            path.unlink()

    def seen(self) -> bool:
        """Whether every cell was measured by both tools, validly, on servers that may be compared."""
        wanted = len(self.fleet.profiles) * len(self.options.concurrency)
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
