"""The experiments behind the table of the measuring client: against the truth, the floor, and other clients."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.client.peers import PEERS, Load, Places
from benchmarks.client.peers import run as run_peer
from benchmarks.client.rows import Row, settled
from benchmarks.client.truth import busy_loops, raw_reader, read_log, truth_server
from tokgate.config.workloads import Prompts, Route, Workload
from tokgate.errors import TokgateError
from tokgate.load.client import Deadlines, ReadBy, Stamps, measure
from tokgate.load.measurement import Measurement
from tokgate.load.prompts import build
from tokgate.load.tap import allowed

LIMITS = Deadlines(first_token_s=60, gap_s=60, request_s=120, drain_s=120)
TURNS = 3
PEER_CHUNKS = 64_000  # a peer's start, which is taken out, scatters by a second of CPU time: 16 us a chunk


@dataclass(frozen=True, slots=True)
class Bench:
    """Where things are: programs, CPUs of the server and of the clients, peers."""

    truth: Path
    reader: Path
    server_cpus: tuple[int, ...]
    client_cpus: tuple[int, ...]
    peers: Places
    tokens: int

    def ours(
        self,
        port: int,
        streams: int,
        tokens: int,
        route: Route = "generate",
        stamps: Stamps = "kernel",
        reader: ReadBy = "auto",
    ) -> Measurement:
        """One run of the client under test."""
        plan = Workload("bench", streams, streams, tokens, prompts=Prompts(length_tokens=3), route=route)
        return measure(
            f"http://127.0.0.1:{port}",
            plan,
            build(plan),
            deadlines=LIMITS,
            pin_cpus=self.client_cpus,
            workers=1,
            stamps=stamps,
            reader=reader,
        )


def accuracy(bench: Bench, streams: int) -> list[Row]:
    """Errors against the truth at one concurrency, and the cost of a chunk."""
    with truth_server(bench.truth, bench.server_cpus) as port:
        found = bench.ours(port, streams, bench.tokens)
        truth = read_log(port)
    metrics, c = found.metrics, f"c={streams}"
    itl, (least, most) = metrics["step_ms_p99"], truth.itl_p99_ms
    itl_true = f"{least:.3f}" if most - least < 0.0005 else f"{least:.3f}..{most:.3f}"
    ttft_true = float(np.percentile(truth.ttft_s, 99))
    voids = ", ".join(reason.cause for reason in found.void) or "none"
    return [
        Row(
            f"ITL p99 error, {c}",
            truth.itl_error(itl) * 100,
            "%",
            0.5,
            f"{itl:.3f} ms, true {itl_true}; void: {voids}",
        ),
        Row(f"TTFT p99 bias, {c}", abs(metrics["ttft_s_p99"] - ttft_true) * 1e3, "ms", 0.5),
        Row(f"tok/s error, {c}", abs(metrics["output_tok_s"] / truth.tok_s - 1) * 100, "%", 0.01),
    ]


def cost(bench: Bench, streams: int, quick: bool) -> list[Row]:
    """CPU time of a chunk against the least that a C program can do, and against sglang-bench.

    The readers (the quick form: the one that is used by itself) and the C program take turns on one server, since a
    machine's speed wanders; the median of the turns counts.
    """
    readers: tuple[ReadBy, ...] = ("auto",) if quick else ("auto", "python")
    costs: dict[ReadBy, list[_Cost]] = {reader: [] for reader in readers}
    raws, c, gated, theirs_us = [], f"c={streams}", streams == 256, None
    with truth_server(bench.truth, bench.server_cpus) as port:
        for _ in range(TURNS):
            for reader in readers:
                costs[reader].append(_Cost.of(bench.ours(port, streams, bench.tokens, reader=reader), port))
            raws.append(raw_reader(bench.reader, port, bench.client_cpus, streams, bench.tokens))
            read_log(port)
        if gated and bench.peers.python("sglang-bench"):
            load = Load(port, streams, bench.tokens)
            theirs_us = run_peer("sglang-bench", bench.peers, load, bench.client_cpus).cpu_us_per_chunk
    raw_us = statistics.median(raw.cpu_us_per_read for raw in raws)
    reads = statistics.median(raw.reads_per_chunk for raw in raws)
    rows = []
    for reader, found in costs.items():
        us = statistics.median(cost.us_per_chunk for cost in found)
        # By read, not by chunk: a client that falls behind gets several chunks for the price of one, and no dates.
        ratios = [cost.us_per_read / raw.cpu_us_per_read for cost, raw in zip(found, raws, strict=True)]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        own = reader == "auto"
        whose = "" if own else ", Python reader"
        note = f"raw {raw_us:.2f} us a read, {reads:.2f} reads a chunk; " if own else ""
        rows += [
            Row(f"CPU per chunk{whose}, {c}", us, "us", None, found[0].read_by if own else ""),
            Row(
                f"CPU / C raw reader{whose}, {c}",
                statistics.median(ratios),
                "x",
                1.25 if gated and own else None,
                f"{note}turns: {each}",
            ),
        ]
    if gated:
        ratio = rows[0].value / theirs_us if rows[0].value and theirs_us else None
        rows.append(
            Row(f"CPU / sglang-bench, {c}", ratio, "x", 0.8, f"{theirs_us:.2f} us" if theirs_us else "")
        )
    return rows


@dataclass(frozen=True, slots=True)
class _Cost:
    us_per_chunk: float
    us_per_read: float
    read_by: str

    @classmethod
    def of(cls, found: Measurement, port: int) -> _Cost:
        """Of a run that the truth server on ``port`` has just served."""
        cpu_us, audit = found.audit.client_cpu_s * 1e6, found.audit
        read_by = "compiled reader" if audit.reader == "c" else f"Python reader: {audit.reader_reason}"
        return cls(cpu_us / read_log(port).events, cpu_us / int((~found.timeline.merged).sum()), read_by)


def cumulative(bench: Bench) -> list[Row]:
    """Streams of 1,000 tokens whose events repeat all text so far."""
    streams = 16
    with truth_server(bench.truth, bench.server_cpus) as port:
        found = bench.ours(port, streams, 1000)
        cpu_us = found.audit.client_cpu_s / read_log(port).events * 1e6
        ratio, note = None, ""
        if bench.peers.python("sglang-bench"):
            load = Load(port, streams, 1000)
            theirs_us = run_peer("sglang-bench", bench.peers, load, bench.client_cpus).cpu_us_per_chunk
            if theirs_us:
                ratio, note = cpu_us / theirs_us, f"{theirs_us:.2f} us"
    return [
        Row(f"CPU per chunk, 1,000 cumulative tokens, c={streams}", cpu_us, "us"),
        Row("CPU / sglang-bench, 1,000 cumulative tokens", ratio, "x", 0.6, note),
    ]


def memory(bench: Bench) -> list[Row]:
    """Peak memory of the worker for 256 streams of 1,000 tokens."""
    with truth_server(bench.truth, bench.server_cpus, "--incremental") as port:
        found = bench.ours(port, 256, 1000)
    return [Row("peak memory, 256 x 1,000 tokens", found.audit.client_peak_mib, "MiB", 200)]


def speculative(bench: Bench, route: Route) -> list[Row]:
    """A speculative stream: 12 ms steps of 1 to 4 tokens."""
    with truth_server(bench.truth, bench.server_cpus, "--spec", "--step-us", "12000") as port:
        found = bench.ours(port, 4, 200, route)
        truth = read_log(port)
    metrics = found.metrics
    pairs = {
        "step gap p50": (metrics["step_ms_p50"], float(np.median(truth.gaps_ms))),
        "tokens per step": (metrics["tokens_per_step"], truth.tokens_per_step),
        "TPOT": (metrics["tpot_ms"], truth.tpot_ms),
    }
    # The OpenAI routes carry no verify counter: there, tokens per step stands for the accept length.
    key = "accept_length" if route == "generate" else "tokens_per_step"
    pairs["accept length"] = (metrics[key], (truth.tokens - truth.requests) / (truth.events - truth.requests))
    return [
        Row(
            f"speculative {name} error, {route}",
            abs(got / true - 1) * 100,
            "%",
            0.5,
            f"{got:.4f}, true {true:.4f}",
        )
        for name, (got, true) in pairs.items()
    ]


def starved(bench: Bench, stamps: Stamps) -> list[Row]:
    """Three busy loops on the client's CPU: the run is void, or right within 1 %."""
    title = f"starved, {stamps} stamps: error without a flag"
    if stamps == "tap" and not allowed():
        return [Row(title, None, "%", 1.0, "needs CAP_NET_RAW")]
    with (
        truth_server(bench.truth, bench.server_cpus) as port,
        busy_loops(3, bench.client_cpus),
    ):
        found = bench.ours(port, 16, bench.tokens, stamps=stamps)
        truth = read_log(port)
    worst = max(
        truth.itl_error(found.metrics["step_ms_p99"]),
        abs(found.metrics["tpot_ms"] / truth.tpot_ms - 1),
        abs(found.metrics["output_tok_s"] / truth.tok_s - 1),
    )
    causes = ", ".join(reason.cause for reason in found.void)
    note = f"error {worst:.2%}; " + (f"void: {causes}" if causes else "not void")
    return [Row(title, 0.0 if causes else worst * 100, "%", 1.0, note)]


def side_by_side(bench: Bench, streams: int) -> list[Row]:
    """The peers on the same server, one after the other."""
    rows = []
    for name in PEERS:
        title = f"{name}, c={streams}"
        if bench.peers.python(name) is None:
            rows.append(Row(f"CPU per chunk: {title}", None, "us"))
            continue
        with truth_server(bench.truth, bench.server_cpus) as port:
            try:
                found = run_peer(
                    name, bench.peers, Load(port, streams, PEER_CHUNKS // streams), bench.client_cpus
                )
            except TokgateError as error:
                rows.append(
                    Row(f"CPU per chunk: {title}", None, "us", None, " | ".join(str(error).split("\n")))
                )
                continue
            truth = read_log(port)
        itl_ms, ttft_ms = (
            float(np.percentile(truth.gaps_ms, 99)),
            float(np.percentile(truth.ttft_s, 99)) * 1e3,
        )
        rows += [
            Row(
                f"CPU per chunk: {title}",
                found.cpu_us_per_chunk,
                "us",
                None,
                bench.peers.version(name),
                "lost in its start",
            ),
            Row(f"ITL p99: {title}", found.itl_p99_ms, "ms", None, f"true {itl_ms:.3f}"),
            Row(f"TTFT p99: {title}", found.ttft_p99_ms, "ms", None, f"true {ttft_ms:.1f}"),
        ]
    return rows


def experiments(bench: Bench, quick: bool) -> list[Row]:
    """All of them; the quick ones are those with limits."""
    rows: list[Row] = []
    for streams in (1, 16, 64, 256):
        rows += settled(partial(accuracy, bench, streams))
    for streams in (256,) if quick else (16, 64, 256):
        rows += settled(partial(cost, bench, streams, quick))
    rows += settled(partial(cumulative, bench))
    rows += settled(partial(memory, bench))
    for route in ("generate", "completions"):
        rows += settled(partial(speculative, bench, route))
    for stamps in ("kernel", "tap"):
        rows += settled(partial(starved, bench, stamps))
    if not quick:
        for streams in (64, 256):
            rows += side_by_side(bench, streams)
    return rows
