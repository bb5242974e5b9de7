"""Tensor parallel on a host with several GPUs: what the gate says of ranks, NCCL, hangs, memory and locks.

    python -m benchmarks.tensor_parallel --engine engine.yaml --target DIR --draft DIR --out OUT --budget-s 420
    python -m benchmarks.tensor_parallel --engine emulated --out OUT --budget-s 120

First three servers start beside each other, none of them timed: one is looked at (captures of every rank, the
environment and versions that each rank has, a trace); of the second a rank is suspended for a while before its
captures, then for good in decode; of the third for good in a capture. Then the gate measures the
profiles ``tp2-*``, as many and as often as there is time for, with gates of one GPU beside it that must be refused
or wait. Everything is written as soon as it is seen. Exit code 0 only when all that was asked was seen; what there
was no time for, or cannot be on this host, is said and is not a success.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import yaml

from benchmarks.tensor_parallel import gate as gates
from benchmarks.tensor_parallel import parts
from benchmarks.tensor_parallel.host import SHELL, Host, attempt, compile_engine, end_leftovers, used_mib
from tokgate.config.engine import resolve_engine
from tokgate.host import gpu

ROOT = Path(__file__).parents[2]
RESERVE_S = 10.0


def first_phase(host: Host) -> float | None:
    """Servers beside each other; how long the start of the one that is looked at lasted, seconds."""
    before = used_mib()
    quiet = threading.Event()
    threads = [
        _thread(host, "slow-rank", parts.slow_rank),
        _thread(host, "hang-capture", parts.hang_in_capture),
    ]
    looked = _thread(host, "look", partial(parts.look, quiet=quiet))
    locks = _thread(host, "locks", gates.refused_by_one)
    for thread in (*threads, locks):
        thread.join(max(0.0, host.left_s - RESERVE_S))
    quiet.set()
    looked.join(max(0.0, host.left_s - RESERVE_S))
    still = [thread.name for thread in (*threads, looked, locks) if thread.is_alive()]
    for name in still:
        host.say(name, "the part ended in time", False)
    if left := end_leftovers(host):
        host.say("memory", "no process was left", False, ", ".join(left))
    parts.memory_back(host, before)
    return host.look_start_s


def _thread(host: Host, name: str, body: Callable[[Host], None]) -> threading.Thread:
    thread = threading.Thread(target=attempt, args=(host, name, body), name=name, daemon=True)
    thread.start()
    return thread


def _prepare(host: Host, options: argparse.Namespace) -> None:
    """The engine and the model as the gate wants them: a file, and a folder with target/ and draft/."""
    engine = host.engine
    known = {
        "kind": engine.kind, "version": engine.version, "python": engine.python, "launcher": list(engine.launcher),
        "pythonpath": list(engine.pythonpath), "env": dict(engine.env),
    }  # fmt: skip
    (host.out / "gpu").mkdir(exist_ok=True)
    (host.out / "gpu" / "engine.yaml").write_text(yaml.safe_dump(known), encoding="utf-8")
    if engine.kind == "emulated":
        return
    folder = host.out / "model"
    folder.mkdir(exist_ok=True)
    for name, given in (("target", options.target), ("draft", options.draft)):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(Path(given).resolve())
    truth = Path(options.target).resolve().parent / "truth.json"
    if truth.is_file():
        (folder / "truth.json").write_bytes(truth.read_bytes())


def _links(host: Host) -> None:
    nvml = gpu.open_nvml()
    began_at = datetime.now(UTC).isoformat(timespec="seconds")
    if isinstance(nvml, str):
        host.write("host", {"gpus": nvml, "began_at": began_at})
        return
    pairs = {f"{a}-{b}": nvml.link(a, b) for a in range(nvml.count) for b in range(a + 1, nvml.count)}
    names = [nvml.gpu(index).name for index in range(nvml.count)]
    facts = {"gpus": names, "links": pairs, "driver": nvml.driver, "cpus": os.cpu_count()}
    host.write("host", {**facts, "began_at": began_at})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", required=True, help="engine.yaml or a name")
    parser.add_argument("--target", default="emulated")
    parser.add_argument("--draft", default="emulated")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget-s", type=float, default=420.0)
    parser.add_argument("--tp", type=int, default=2, help="ranks of the servers of the first phase")
    parser.add_argument("--only", choices=("servers", "gate"), help="one phase alone")
    parser.add_argument("--config-folder", type=Path, default=ROOT / "perf_tests", help="as of tokgate gate")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    host = Host(
        engine=resolve_engine(options.engine, ROOT / "environments"), target=options.target, draft=options.draft,
        out=options.out.resolve(), until_s=time.monotonic() + options.budget_s, tp=options.tp,
        config=options.config_folder.resolve(),
    )  # fmt: skip
    _prepare(host, options)
    attempt(host, "host", _links)
    attempt(host, "bytecode", compile_engine)
    os.environ |= SHELL
    start_s = None
    if options.only != "gate":
        start_s = first_phase(host)
    if options.only != "servers":
        attempt(host, "gate", partial(gates.gate, start_s=start_s))
    end_leftovers(host)
    wanted = [item for item in host.seen if item.ok is not True]
    print(
        f"\n{len(host.seen) - len(wanted)} of {len(host.seen)} seen in {time.monotonic() - host.began_s:.0f} s:"
    )
    for item in (*wanted, *(item for item in host.seen if item.ok))[:23]:
        print(item)
    return 0 if not wanted else 1


if __name__ == "__main__":
    code = main()
    # A part that did not end in time is a daemon thread in the middle of something: nothing waits for it.
    os._exit(code)
