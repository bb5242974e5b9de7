"""Is the measuring client right, and what does it cost? ``python -m benchmarks.client [--quick]``.

Prints a table of rows; exits 1 when a row with a limit is missed. A missed row's experiment is repeated
twice and the median counts. What is not installed is 'not run', which is neither good nor bad.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.client.peers import PEERS, Load, Places, install
from benchmarks.client.peers import run as run_peer
from benchmarks.client.rows import Row, document, settled, table
from benchmarks.client.truth import busy_loops, compiled, raw_reader, read_log, truth_server
from tokgate import __version__
from tokgate.config.workloads import Prompts, Route, Workload
from tokgate.errors import TokgateError
from tokgate.load.client import Deadlines, Measurement, Stamps, measure
from tokgate.load.prompts import build
from tokgate.load.tap import allowed

LIMITS = Deadlines(first_token_s=60, gap_s=60, request_s=120, drain_s=120)


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
        self, port: int, streams: int, tokens: int, route: Route = "generate", stamps: Stamps = "kernel"
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
        )


def accuracy(bench: Bench, streams: int) -> list[Row]:
    """Errors against the truth at one concurrency, and the cost of a chunk."""
    with truth_server(bench.truth, bench.server_cpus) as port:
        found = bench.ours(port, streams, bench.tokens)
        truth = read_log(port)
    metrics, c = found.metrics, f"c={streams}"
    itl_true, itl = float(np.percentile(truth.gaps_ms, 99)), metrics["step_ms_p99"]
    ttft_true = float(np.percentile(truth.ttft_s, 99))
    voids = ", ".join(reason.cause for reason in found.void) or "none"
    return [
        Row(
            f"ITL p99 error, {c}",
            abs(itl / itl_true - 1) * 100,
            "%",
            0.5,
            f"{itl:.3f} ms, true {itl_true:.3f}; void: {voids}",
        ),
        Row(f"TTFT p99 bias, {c}", abs(metrics["ttft_s_p99"] - ttft_true) * 1e3, "ms", 0.5),
        Row(f"tok/s error, {c}", abs(metrics["output_tok_s"] / truth.tok_s - 1) * 100, "%", 0.01),
    ]


def cost(bench: Bench, streams: int, pairs: int) -> list[Row]:
    """CPU time of a chunk against the least that a C program can do, and against sglang-bench.

    The two take turns on one server, since a machine's speed wanders; the median of the pairs counts.
    """
    ours_us, reads_us, raws, c = [], [], [], f"c={streams}"
    theirs_us = None
    with truth_server(bench.truth, bench.server_cpus) as port:
        for _ in range(pairs):
            found = bench.ours(port, streams, bench.tokens)
            ours_us.append(found.audit.client_cpu_s / read_log(port).events * 1e6)
            reads_us.append(found.audit.client_cpu_s / int((~found.timeline.merged).sum()) * 1e6)
            raws.append(raw_reader(bench.reader, port, bench.client_cpus, streams, bench.tokens))
            read_log(port)
        if streams == 256 and bench.peers.python("sglang-bench"):
            load = Load(port, streams, bench.tokens)
            theirs_us = run_peer("sglang-bench", bench.peers, load, bench.client_cpus).cpu_us_per_chunk
    # By read, not by chunk: a client that falls behind gets several chunks for the price of one, and no dates.
    ratios = [ours / raw.cpu_us_per_read for ours, raw in zip(reads_us, raws, strict=True)]
    raw_us = statistics.median(raw.cpu_us_per_read for raw in raws)
    reads = statistics.median(raw.reads_per_chunk for raw in raws)
    ours = statistics.median(ours_us)
    gated = streams == 256
    rows = [
        Row(f"CPU per chunk, {c}", ours, "us"),
        Row(
            f"CPU / C raw reader, {c}",
            statistics.median(ratios),
            "x",
            1.25 if gated else None,
            f"raw {raw_us:.2f} us a read, {reads:.2f} reads a chunk; pairs: {', '.join(f'{r:.2f}' for r in ratios)}",
        ),
    ]
    if gated:
        ratio = ours / theirs_us if theirs_us else None
        rows.append(
            Row(f"CPU / sglang-bench, {c}", ratio, "x", 0.8, f"{theirs_us:.2f} us" if theirs_us else "")
        )
    return rows


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
    itl_true = float(np.percentile(truth.gaps_ms, 99))
    worst = max(
        abs(found.metrics["step_ms_p99"] / itl_true - 1),
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
                found = run_peer(name, bench.peers, Load(port, streams, bench.tokens), bench.client_cpus)
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
            Row(f"CPU per chunk: {title}", found.cpu_us_per_chunk, "us", None, bench.peers.version(name)),
            Row(f"ITL p99: {title}", found.itl_p99_ms, "ms", None, f"true {itl_ms:.3f}"),
            Row(f"TTFT p99: {title}", found.ttft_p99_ms, "ms", None, f"true {ttft_ms:.1f}"),
        ]
    return rows


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the main rows, under 50 s")
    parser.add_argument(
        "--peers", type=Path, help="folder with environments of AIPerf and GuideLLM, outside the repository"
    )
    parser.add_argument(
        "--sglang", type=Path, metavar="ENGINE.yaml", help="SGLang's clients; default: tokgate env make cpu"
    )
    parser.add_argument(
        "--install-peers", nargs="*", metavar="NAME", help=f"install into --peers: {', '.join(PEERS)}"
    )
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--write", action="store_true", help="also write the table into the docs")
    options = parser.parse_args()
    if options.install_peers is not None:
        if options.peers is None:
            parser.error("--install-peers needs --peers FOLDER")
        for name in options.install_peers or [n for n in PEERS if PEERS[n].packages]:
            if name not in PEERS:
                parser.error(f"no peer '{name}'; known: {', '.join(PEERS)}")
            try:
                install(name, options.peers)
                print(f"{name}: installed")
            except TokgateError as error:
                print(f"{name}: {error}")
        return 0
    cpus, before = sorted(os.sched_getaffinity(0)), os.getloadavg()[0]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tokgate-bench-") as folder:
        try:
            bench = Bench(
                truth=compiled("truth_server", Path(folder)),
                reader=compiled("raw_reader", Path(folder)),
                server_cpus=(cpus[0],),
                client_cpus=(cpus[-1],),
                peers=Places.find(options.peers, options.sglang),
                tokens=300 if options.quick else 1000,
            )
            rows = _experiments(bench, options.quick)
        except TokgateError as error:
            print(f"benchmarks.client: {error}", file=sys.stderr)
            return error.exit_code
    python, kernel = platform.python_version(), platform.release()
    host = f"{platform.machine()}, {len(cpus)} CPUs, Linux {kernel}, Python {python}"
    load = os.getloadavg()[0]
    print(table(rows))
    print(f"tokgate {__version__}; {host}; load {load:.1f}; {time.monotonic() - began:.0f} s")
    if options.json:
        facts = {"tokgate": __version__, "host": host, "load": load, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    if options.write:
        today = datetime.date.today().isoformat()
        document(rows, f"tokgate {__version__}; {host}; load before {before:.1f}", today)
    missed = sum(row.missed for row in rows)
    if missed:
        print(f"{missed} row{'s' if missed > 1 else ''} missed")
    return 1 if missed else 0


def _experiments(bench: Bench, quick: bool) -> list[Row]:
    rows: list[Row] = []
    for streams in (1, 16, 64, 256):
        rows += settled(partial(accuracy, bench, streams))
    for streams in (256,) if quick else (16, 64, 256):
        rows += settled(partial(cost, bench, streams, 3))
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


if __name__ == "__main__":
    sys.exit(main())
