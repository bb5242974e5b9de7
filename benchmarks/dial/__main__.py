"""The dial, the guard, ties and a large pair on real SGLang: what was predicted against what came.

    python -m benchmarks.dial --engine ENGINE.yaml --out OUTDIR --budget-s 240
    python -m benchmarks.dial --engine cpu/engine.yaml --preset tiny --at-once 1 --prompts 4 --new-tokens 32 ...

Pairs for each accept length are made (one target, hard links), their servers run at the same time on one GPU,
with CUDA graphs on and off and in both attention modes. Each is asked one request over whole cycles of the
dial and many prompts at once; ``spec_verify_ct``, the accept length, the output known beforehand and parity
with a server without speculation are held against the prediction. Speed is not measured.

Parts: ``dial``; ``misuse``: EAGLE with an EAGLE-3 draft, refused and then forced; ``tie``: a near-tie pair;
``8b``: made, verified and started, with its seconds. Each result is written to OUTDIR/results.jsonl at once.
Exit code 0 only if all that was asked was seen.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import multiprocessing
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.dial import parts as dial_parts
from benchmarks.dial.bench import Bench, Row, line
from benchmarks.dial.questions import ask_for, expect
from tokgate.analysis.parity import compare
from tokgate.config.engine import Engine, resolve_engine
from tokgate.config.profiles import AttentionMode
from tokgate.host import gpu
from tokgate.host.lock import GpuLocks
from tokgate.host.visible import visible_indices
from tokgate.server.ledger import GpuLedger
from tokgate.sglang.flags import applicability

PARTS = ("dial", "misuse", "tie", "8b")
RELEASE_S, SLACK_MIB = 10.0, 64
MODES: tuple[AttentionMode, ...] = ("prefill", "decode")


def run(bench: Bench) -> None:
    """All parts, side by side, until the time is up."""
    options = bench.options
    if "8b" in options.parts:
        dial_parts.large_made(bench, bench.models / "8b")
    questions = ask_for(
        bench.recipe(bench.first),
        prompts=options.prompts,
        new_tokens=options.new_tokens,
        cycles=options.cycles,
    )
    reckoner = ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn"))
    expected = {x: reckoner.submit(expect, bench.recipe(x), questions) for x in options.accept_lengths}
    with bench.row("pair made"):
        bench.pair(bench.first)
    jobs: dict[str, Callable[[], None]] = {}
    if "tie" in options.parts:
        jobs["near-tie"] = partial(dial_parts.tie, bench, questions)
    if "8b" in options.parts:
        jobs["8b verified"] = partial(dial_parts.large_verified, bench, bench.models / "8b")
        jobs["8b served"] = partial(dial_parts.large_served, bench, bench.models / "8b")
    if "dial" in options.parts:
        jobs["baseline"] = partial(dial_parts.baseline, bench, questions, expected[bench.first])
    if "misuse" in options.parts:
        jobs["EAGLE forced"] = partial(dial_parts.misuse, bench, questions)
    if "dial" in options.parts:
        for length, graphs, mode in itertools.product(options.accept_lengths, (True, False), MODES):
            profile = bench.profile("-", graphs=graphs, mode=mode)
            if applicability(profile, bench.engine.kind, bench.engine.version) is None:
                jobs[dial_parts.name_of(length, graphs, mode)] = partial(
                    dial_parts.combination, bench, length, graphs, mode, questions, expected[length]
                )
    pool = ThreadPoolExecutor(len(jobs))
    futures = [pool.submit(job) for job in jobs.values()]
    wait(futures, bench.fleet.left_s)
    bench.fleet.end(10.0)
    wait(futures, 8.0)
    for process in (reckoner._processes or {}).values():
        process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)
    for name in jobs:
        if name not in bench.rows:
            bench.add(Row(name, False, "NOT FINISHED in time"))


def parity_with_baseline(bench: Bench) -> None:
    """Every speculative server's answers against those of the one without, token by token."""
    if "dial" not in bench.options.parts:
        return
    wanted = bench.answers.pop("baseline", None)
    if wanted is None or bench.reference is None:
        bench.add(Row("parity", False, "no answers without speculation to compare with"))
        return
    texts, good, requests, tokens = [], bool(bench.answers), 0, 0
    for name, got in bench.answers.items():
        result = compare(wanted[: len(got)], got, bench.reference.floor)
        requests += len(got)
        tokens += sum(each.compared for each in result.comparisons)
        if result.verdict != "PASS":
            good = False
            texts.append(f"{name}: {result.headline()}")
    texts = texts or [
        f"all equal or ties: {requests} outputs of {len(bench.answers)} servers, {tokens} tokens"
    ]
    bench.add(Row("parity", good, "; ".join(texts)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--engine", required=True, help="engine.yaml of a real engine")
    option("--out", type=Path, required=True, help="results and logs")
    option("--budget-s", type=float, default=240.0, help="everything ends by then")
    option("--models", type=Path, help="where pairs are made (default: a temporary folder, removed)")
    option("--preset", default="1b")
    option(
        "--accept-lengths",
        type=lambda text: [float(x) for x in text.split(",")],
        default=[1.5, 2.5, 3.0, 4.0],
    )
    option("--parts", type=lambda text: text.split(","), default=list(PARTS), help=", ".join(PARTS))
    option("--at-once", type=int, default=8, help="servers at a time")
    option("--prompts", type=int, default=200, help="for each server")
    option("--prompts-eager", type=int, default=64, help="for one without graphs")
    option("--new-tokens", type=int, default=256)
    option(
        "--backends",
        type=lambda text: text.split(","),
        default=["auto"],
        help="with which 8b is made, in turn",
    )
    option("--cycles", type=int, default=2, help="of the dial, in the long request")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"--parts: no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    # Dozens of connections to each server at once.
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    engine = resolve_engine(options.engine, Path("environments"))
    with ExitStack() as stack:
        models = options.models or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tokgate-dial-"))
        )
        stack.enter_context(GpuLocks(_uuids(engine)))
        before = GpuLedger.open(engine.kind, engine.env, 1)
        bench = Bench(options, engine, models)
        run(bench)
        parity_with_baseline(bench)
        left = _left_mib(before)
    for log in (options.out / "logs").glob("*.log"):
        with log.open("rb") as source, gzip.open(f"{log}.gz", "wb") as packed:
            shutil.copyfileobj(source, packed)
        log.unlink()
    print(f"\nSGLang {engine.version}, {options.preset}; GPU memory left over, MiB: {left}")
    for row in bench.rows.values():
        print(line(row))
    bad = [row.name for row in bench.rows.values() if not row.good]
    print(
        f"{len(bench.rows) - len(bad)} of {len(bench.rows)} as predicted"
        + (f"; not: {', '.join(bad)}" if bad else "")
    )
    return 1 if bad else 0


def _left_mib(before: GpuLedger) -> dict[int, int] | None:
    """GPU memory in use beyond what was before; a driver takes some seconds to give all of it back."""
    until = time.monotonic() + RELEASE_S
    while True:
        left = before.left_mib(before.held(()))
        if not left or max(left.values()) <= SLACK_MIB or time.monotonic() > until:
            return left
        time.sleep(0.5)


def _uuids(engine: Engine) -> list[str]:
    nvml = gpu.open_nvml()
    if engine.kind != "gpu" or isinstance(nvml, str):
        return []
    return [nvml.uuids()[index] for index in visible_indices(nvml, engine.env, 1)]


if __name__ == "__main__":
    raise SystemExit(main())
