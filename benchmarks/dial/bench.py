"""What the parts of the dial's script share: pairs, profiles, servers, and rows of the table."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.dial.fleet import Fleet, OutOfTime
from tokgate.analysis.parity import Output
from tokgate.config.engine import Engine
from tokgate.config.profiles import AttentionMode, Profile, Speculation
from tokgate.gate import parity
from tokgate.gate.greedy import GreedyClient
from tokgate.models.dial import Dial
from tokgate.models.maker import Recipe, make
from tokgate.models.presets import find_preset
from tokgate.server.launch import Server
from tokgate.sglang.version import rules_for

STEPS = 3
ENDING_S = 20.0
"""Before the budget ends: to stop the servers and to write."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, and all that stands behind it."""

    name: str
    good: bool
    text: str
    seconds: float = 0.0
    facts: dict[str, object] = field(default_factory=dict)


class Bench:
    """One call of the script."""

    def __init__(self, options: argparse.Namespace, engine: Engine, models: Path) -> None:
        self.options, self.engine, self.models = options, engine, models
        self.until_s = time.monotonic() + options.budget_s - ENDING_S
        self.fleet = Fleet(engine, options.out, self.until_s, options.at_once)
        self.preset = find_preset(options.preset)
        self.rows: dict[str, Row] = {}
        self.answers: dict[str, list[Output]] = {}
        self.reference: parity.Answers | None = None
        self._lock = threading.Lock()
        self._making = {length: threading.Lock() for length in options.accept_lengths}

    @property
    def first(self) -> float:
        """The accept length whose pair is made whole."""
        return float(self.options.accept_lengths[0])

    def recipe(self, accept_length: float, near_tie: int | None = None) -> Recipe:
        return Recipe(self.preset.name, 0, Dial("accept_length", accept_length, STEPS), near_tie)

    def pair(self, accept_length: float) -> Path:
        """The pair of an accept length; made by who asks first, with the first one's target."""
        out, target = (self.models / f"accept-{each:g}" for each in (accept_length, self.first))
        with self._making[accept_length]:
            if not (out / "truth.json").is_file():
                shared = target if accept_length != self.first else None
                make(self.preset.name, out, accept_length=accept_length, steps=STEPS, target_of=shared)
        return out

    def profile(self, name: str, *, graphs: bool = True, mode: AttentionMode | None = None) -> Profile:
        """A server that shares its GPU: SGLang charges to each what others take while it loads, so the KV cache
        is bounded by its tokens and the share of memory is generous."""
        on_gpu = self.engine.kind == "gpu"
        longest = min(self.preset.max_position, 8192)
        flag = "--cuda-graph-bs-decode" if rules_for(self.engine.version).since(14) else "--cuda-graph-bs"
        return Profile(
            name=name,
            cuda_graphs=graphs,
            prefill_cuda_graphs=False,
            attention_backend="triton" if on_gpu else None,
            sampling_backend="pytorch",
            mem_fraction=0.85 if on_gpu else None,
            max_total_tokens=49152 if on_gpu else 16384,
            max_running_requests=64 if on_gpu else 8,
            context_length=longest,
            radix_cache=mode == "decode",
            random_seed=42,
            speculation=None if mode is None else Speculation("EAGLE3", STEPS, 1, STEPS + 1, mode),
            extra_flags=(flag, "1", "8", "64") if on_gpu and graphs else (),
        )

    def client(self, server: Server) -> GreedyClient:
        return GreedyClient(server.url, self.fleet.left_s)

    def add(self, row: Row) -> None:
        with self._lock:
            self.rows[row.name] = row
            print(f"[{time.strftime('%H:%M:%S')}] {line(row)}", flush=True)
            with (self.options.out / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")

    @contextmanager
    def row(self, name: str) -> Iterator[None]:
        """Whatever goes wrong in the body becomes the row of that name."""
        began = time.monotonic()
        try:
            yield
        except OutOfTime as error:
            self.add(Row(name, False, f"NOT RUN: {error}", time.monotonic() - began))
        except Exception as error:  # noqa: BLE001 - one part's fault must not end the others
            late = time.monotonic() > self.until_s
            text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            facts: dict[str, object] = {"error": str(error)}
            self.add(
                Row(
                    name,
                    False,
                    f"NOT FINISHED in time: {text}" if late else text,
                    time.monotonic() - began,
                    facts,
                )
            )


def line(row: Row) -> str:
    return f"{'ok  ' if row.good else 'BAD '} {row.name:<24} {row.seconds:5.1f} s  {row.text}"[:200]


def run_all(tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks side by side; the first fault is raised once all have ended."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        for future in [pool.submit(task) for task in tasks]:
            future.result()
