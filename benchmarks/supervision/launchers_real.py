"""Three launchers on a real engine, all at the same time: seconds to a verdict, what survives, GPU memory left.

    python -m benchmarks.supervision.launchers_real --engine engine.yaml --target DIR --draft DIR --out OUT

tokgate's launcher, ``popen_launch_server`` and ``kill_process_tree`` of the engine's own SGLang, and a launcher that
behaves as vLLM's ``RemoteOpenAIServer`` does. Two faults: the scheduler is suspended when a graph capture begins
(``--at`` another log line), and a process that detached itself holds memory of the GPU. For the others the time that a
start may take is ``--launch-s`` in place of the shipped 600 s and 240 s; tokgate's deadlines without progress are
shortened by the factor of SGLang's. Everything else is as shipped. Exit code 0 when every launch was seen to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.supervision.launcher_drivers import SGLANG_LAUNCH_S
from benchmarks.supervision.launchers import LAUNCHERS, TRIAL, DriverFault, Row, drive, processes_of, table
from tokgate.config.engine import Engine, resolve_engine
from tokgate.config.profiles import Profile, Speculation
from tokgate.host import ports, proc
from tokgate.sglang.flags import server_arguments

ROOT = Path(__file__).parents[2]
SUSPENDED, DETACHED = "scheduler suspended", "a process detached, holding memory"
# GPU memory of processes that were killed is back within 3 s.
SETTLE_S = 5.0
HOLDER = """
import sys, time
if sys.argv[1] == "gpu":
    import torch
    kept = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
else:
    kept = bytearray(b"x") * (200 << 20)
time.sleep(3600)
"""


@dataclass
class Trials:
    """Launches of all launchers with all faults on one engine."""

    options: argparse.Namespace
    engine: Engine
    until_s: float
    rows: list[Row] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def run(self) -> None:
        """All of them, so many at once; each result is written as soon as it is there."""
        with ThreadPoolExecutor(max_workers=self.options.at_once) as pool:
            jobs = [(fault, launcher) for fault in (SUSPENDED, DETACHED) for launcher in LAUNCHERS]
            list(pool.map(lambda job: self._try(*job), jobs))
        self.rows.sort(key=lambda row: (row.fault != SUSPENDED, LAUNCHERS.index(row.launcher)))

    def _try(self, fault: str, launcher: str) -> None:
        left_s = self.until_s - time.monotonic()
        if left_s < 30:
            self.failed.append(f"{launcher}, {fault}: no time was left to begin it")
            return
        try:
            row = self._launch(fault, launcher, left_s)
        except DriverFault as error:
            self.failed.append(str(error))
            return
        self.rows.append(row)
        with (self.options.out / "rows.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        print(row, flush=True)

    def _launch(self, fault: str, launcher: str, left_s: float) -> Row:
        options, engine = self.options, self.engine
        name = uuid.uuid4().hex
        folder: Path = options.out / f"{launcher}-{'suspended' if fault == SUSPENDED else 'detached'}"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "bin").mkdir(parents=True)
        shim = folder / "bin" / "sglang"
        shim.write_text(self._shim(folder, launcher, detached=fault == DETACHED), encoding="utf-8")
        shim.chmod(0o755)
        factor = SGLANG_LAUNCH_S / options.launch_s
        port = ports.free_port()
        job = {
            "launcher": launcher, "port": port, "shim": str(shim), "folder": str(folder), "scale": 1,
            "launch_s": options.launch_s, "arguments": self._arguments(port), "model": options.target,
            "kind": engine.kind, "version": engine.version, "floors": {"capture_s": 120 / factor},
        }  # fmt: skip
        if engine.kind == "cpu":
            job["floors"] = {"weights_s": 120 / factor}
        python, env = sys.executable, {TRIAL: name, "PATH": f"{shim.parent}:{os.environ['PATH']}"}
        if launcher == "sglang":
            python = engine.python
            # `HF_HUB_OFFLINE=1` would make popen_launch_server launch once more after a failure.
            env |= {**engine.env, "PYTHONPATH": os.pathsep.join(engine.pythonpath), "HF_HUB_OFFLINE": "0"}
        ended = threading.Event()
        striker = threading.Thread(target=self._strike, args=(name, folder / "engine.log", ended))
        if fault == SUSPENDED:
            striker.start()
        try:
            return drive(job, fault, python, env, settle_s=SETTLE_S, timeout_s=left_s)
        finally:
            ended.set()
            if striker.ident is not None:
                striker.join()

    def _shim(self, folder: Path, launcher: str, *, detached: bool) -> str:
        """The ``sglang`` command of a launch: its `serve` starts the engine, with its fault."""
        engine = self.engine
        lines = ["#!/bin/sh", "shift"]
        # Else a renamed process hides the environment by which it is found.
        env = {**engine.env, "SPT_NOENV": "1", "PYTHONPATH": os.pathsep.join(engine.pythonpath)}
        lines += [f"export {key}={shlex.quote(value)}" for key, value in env.items()]
        if detached:
            device = "gpu" if engine.kind == "gpu" else "host"
            lines.append(
                # In a subshell: its parent ends at once, so no parent link leads to it.
                f"(setsid {shlex.quote(engine.python)} -c {shlex.quote(HOLDER)} {device} "
                f"</dev/null >{shlex.quote(str(folder / 'holder.txt'))} 2>&1 &)"
            )
        # tokgate's launcher writes the log itself.
        log = "" if launcher == "tokgate" else f" >{shlex.quote(str(folder / 'engine.log'))} 2>&1"
        lines.append(f'exec {shlex.join([engine.python, *engine.launcher])} "$@"{log}')
        return "\n".join(lines) + "\n"

    def _arguments(self, port: int) -> list[str]:
        options = self.options
        profile = Profile(
            name="launchers",
            attention_backend="triton",
            mem_fraction=0.8,
            max_total_tokens=20_000,
            max_running_requests=8,
            cuda_graph_max_bs=8,
            prefill_cuda_graphs=False,
            context_length=4096,
            speculation=Speculation(steps=3, topk=1, draft_tokens=4) if options.draft else None,
        )
        argv = server_arguments(
            profile,
            version=self.engine.version,
            kind=self.engine.kind,
            target=options.target,
            draft=options.draft or None,
            host="127.0.0.1",
            port=port,
        ).argv
        # All three name model, host and port themselves.
        own = [
            n
            for flag in ("--model-path", "--host", "--port")
            for n in (argv.index(flag), argv.index(flag) + 1)
        ]
        return [item for number, item in enumerate(argv) if number not in own]

    def _strike(self, name: str, log: Path, ended: threading.Event) -> None:
        """Suspend the scheduler once the log has the line."""
        line = re.compile(self.options.at)
        while not ended.wait(0.05):
            if log.is_file() and line.search(log.read_text(encoding="utf-8", errors="replace")):
                for process in processes_of(name):
                    if "sglang::scheduler" in proc.title(process):
                        proc.send(process, signal.SIGSTOP)
                return


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", required=True, help="engine.yaml of a real engine")
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget-s", type=float, default=330.0)
    parser.add_argument("--launch-s", type=float, default=200.0, help="how long the others let a start take")
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--at", default=r"Capture .*(CUDA )?graph begin", help="log line at which to suspend")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rows.jsonl").unlink(missing_ok=True)
    engine = resolve_engine(options.engine, ROOT / "environments")
    trials = Trials(options, engine, time.monotonic() + options.budget_s - 2 * SETTLE_S)
    trials.run()
    factor = SGLANG_LAUNCH_S / options.launch_s
    head = (
        f"Real engine ({engine.kind}), SGLang {engine.version}, {options.at_once} launches at once. Shortened: "
        f"a start may take {options.launch_s:.0f} s (SGLang's 600 s, vLLM's 240 s), tokgate's deadline of the "
        f"struck phase {120 / factor:.0f} s (120 s). What is left is counted {SETTLE_S:.0f} s after each "
        "launcher's own stop."
    )
    text = table(trials.rows, head)
    text += "".join(f"\nleft out: {line.splitlines()[0]}" for line in trials.failed)
    (options.out / "table.md").write_text(text + "\n", encoding="utf-8")
    (options.out / "failed.txt").write_text("\n\n".join(trials.failed), encoding="utf-8")
    print(text)
    return 1 if trials.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
