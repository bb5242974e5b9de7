"""Why runs of one and the same server differ: runs under several conditions, with everything that may explain it.

::

    python -m benchmarks.noise --engine FILE --target DIR --out DIR --budget-s 200 [--target-8b DIR]
    python -m benchmarks.noise --keep DIR KEPT      # small enough to be committed
    python -m benchmarks.noise --analyse            # tables and plots of the page from the kept studies
    python -m benchmarks.noise --gate-runs          # table of what the gate's own counters say of its runs
    python -m benchmarks.noise --stored tests/assets/h200/20261129-143440-583a/samples      # of the kept campaign

One launch of the baseline profile (of each model). Rounds of runs, each round every condition once in random
order (seeded), until the budget is spent; every run is written at once, with the gaps between all tokens, counters
before and after, and ten looks a second at GPU and CPU from a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.noise.study import Study
from tokgate import environments
from tokgate.config.engine import Engine, resolve_engine
from tokgate.config.gate import load_gate
from tokgate.config.profiles import load_profiles
from tokgate.config.workloads import load_workloads
from tokgate.errors import TokgateError
from tokgate.gate.blocks.neighbours import KV_TOKENS, MEM_FRACTION
from tokgate.host.ports import free_port
from tokgate.server.launch import start
from tokgate.server.running import Server
from tokgate.server.spec import LaunchSpec
from tokgate.sglang.flags import server_arguments

ROOT = Path(__file__).parents[2]
KEPT = sorted(Path(__file__).parent.glob("h200*"))
"""Studies that the page is made of."""

STOP_S = 20.0
"""Kept back for the end of the servers."""


def launch(engine: Engine, target: str, name: str, out: Path) -> Server:
    """One server of the baseline profile.

    On a GPU with a large share and a cap on its tokens: what a neighbour takes while this one starts is counted
    against its share, and a small one then leaves nothing.
    """
    profile = load_profiles(ROOT / "perf_tests" / "profiles.yaml").get("baseline")
    capped: list[str] = []
    if engine.kind == "gpu":
        profile = replace(profile, mem_fraction=MEM_FRACTION)
        capped = ["--max-total-tokens", str(KV_TOKENS)]
    gate = load_gate(ROOT / "perf_tests" / "gate.yaml")
    port = free_port()
    arguments = server_arguments(
        profile,
        version=engine.version,
        kind=engine.kind,
        target=target,
        draft=None,
        host="127.0.0.1",
        port=port,
    )
    argv = [engine.python, *engine.launcher, *arguments.argv, *capped]
    paths = list(engine.pythonpath)
    if engine.kind == "emulated":
        argv += ["--scenario", engine.scenario or "founding", "--emulated-version", engine.version]
        paths.append(str(ROOT))
    env = {**engine.env, **arguments.env, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}
    return start(
        LaunchSpec(
            profile=profile,
            engine=engine,
            argv=tuple(argv),
            env=env,
            host="127.0.0.1",
            port=port,
            log_path=out / f"server-{name}.log",
            forensics_dir=out / "forensics",
            deadlines=gate.deadlines.floors[engine.kind],
        )
    )


def collect(options: argparse.Namespace) -> int:
    """Launch, measure, stop; 0 when every model had enough runs."""
    began = time.monotonic()
    end_s = began + options.budget_s - STOP_S
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    engine = resolve_engine(options.engine, environments.root())
    targets = {"1b": options.target or "emulated"}
    if options.target_8b:
        targets["8b"] = options.target_8b
    servers: dict[str, Server] = {}
    faults: dict[str, str] = {}

    def starter(name: str, target: str) -> Callable[[], None]:
        def begin() -> None:
            try:
                servers[name] = launch(engine, target, name, out)
            except TokgateError as fault:
                faults[name] = fault.headline

        return begin

    threads = [threading.Thread(target=starter(name, target)) for name, target in targets.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(
        f"{len(servers)} of {len(targets)} servers ready after {time.monotonic() - began:.0f} s", flush=True
    )
    told: dict[str, Any] = {"faults": faults, "argv": sys.argv[1:], "models": {}}
    try:
        for number, name in enumerate(list(servers)):
            left = len(servers) - number
            # The first model, whose runs scatter, gets the larger share.
            share = (end_s - time.monotonic()) * (0.62 if left > 1 else 1.0)
            try:
                told["models"][name] = _study(name, servers[name], targets[name], engine, out, share)
            except TokgateError as fault:
                faults[name] = fault.headline
            servers[name].stop()
    finally:
        for server in servers.values():
            server.stop()
        (out / "study.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    for name, said in faults.items():
        print(f"{name}: {said}")
    from benchmarks.noise.report import table

    print(table(out))
    enough = all(told["models"].get(name, {}).get("runs", 0) >= options.enough for name in targets)
    return 0 if enough and not faults else 1


def _study(
    name: str, server: Server, target: str, engine: Engine, out: Path, share_s: float
) -> dict[str, Any]:
    from tokgate.gate.modelstore import vocabulary

    base = load_workloads(ROOT / "perf_tests" / "workloads.yaml", engine.kind).get("chat-bs1")
    # Two to three seconds: long enough to see whether a run is slow throughout.
    size = {"gpu": (1 if name == "8b" else 3, 512), "cpu": (1, 64), "emulated": (2, 96)}[engine.kind]
    workload = replace(base, requests=size[0], output_tokens=size[1], concurrency=1)
    known = vocabulary(Path(target)) if Path(target).is_dir() else None
    study = Study(name, server, workload, known, out, engine.env)
    study.rounds(time.monotonic() + share_s)
    return {**study.facts(), "runs": study.runs, "left_out": study.left_out}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default="emulated:steady")
    parser.add_argument("--target", help="folder of the target model")
    parser.add_argument("--draft", help="not used: runs are without speculation")
    parser.add_argument("--target-8b", help="a larger target; started at the same time, measured afterwards")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget-s", type=float, default=200.0)
    parser.add_argument("--enough", type=int, default=30, help="runs of each model that count as enough")
    parser.add_argument("--analyse", type=Path, nargs="*", metavar="DIR", help="kept studies (default: all)")
    parser.add_argument("--keep", type=Path, nargs=2, metavar="DIR", help="a small copy of what a call wrote")
    parser.add_argument("--stored", type=Path, metavar="DIR", help="Samples of an earlier campaign instead")
    parser.add_argument(
        "--collect", type=Path, nargs="+", metavar="PATH", help="a file, and folders of Samples"
    )
    parser.add_argument("--gate-runs", action="store_true", help="the page's table of the gate's own runs")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "explanation")
    options = parser.parse_args()
    if options.analyse is not None:
        from benchmarks.noise.report import write

        write(options.analyse or KEPT, options.docs)
        return 0
    if options.collect:
        from benchmarks.noise.gate_runs import collect as collect_gates

        collect_gates(options.collect[0], options.collect[1:])
        return 0
    if options.gate_runs:
        from benchmarks.noise.gate_runs import write as write_gates

        write_gates(Path(__file__).parent, options.docs / "noise.md")
        return 0
    if options.keep:
        from benchmarks.noise.report import keep

        keep(*options.keep)
        return 0
    if options.stored:
        from benchmarks.noise.stored import write as write_stored

        write_stored(options.stored, options.docs / "noise.md")
        return 0
    if options.out is None:
        parser.error("--out is missing")
    # Asked to end: stop the servers first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return collect(options)


if __name__ == "__main__":
    sys.exit(main())
