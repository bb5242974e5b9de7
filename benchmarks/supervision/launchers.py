"""Three launchers on the same faults: seconds to a verdict, what survives, what is left.

    python -m benchmarks.supervision.launchers --sglang environments/cpu/engine.yaml [--write]

Each launches the emulated engine with a fault planted: tokgate's own launcher, ``popen_launch_server`` and
``kill_process_tree`` of the SGLang installed in the named environment (its ``sglang`` command is a script
that runs the emulator), and a launcher that behaves as vLLM's ``RemoteOpenAIServer`` does. Times are scaled
down alike: every deadline and pause of the three is its shipped value divided by SCALE.
``--write`` puts the table into docs/explanation/supervision.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.page import put
from tokgate.config.engine import Engine, resolve_engine
from tokgate.host import gpu, ports, proc

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "explanation" / "supervision.md"
BEGIN, END = "<!-- launchers: begin -->", "<!-- launchers: end -->"
SCALE = 30
TRIAL = "LAUNCHER_TRIAL"
EAGLE3 = (
    "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "emulated-draft",
    "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
    "--attention-backend", "triton",
)  # fmt: skip
FAULTS = {
    "none (control)": "",
    "draft extend capture never ends": "capture-hang:draft-extend",
    "scheduler dies while it loads": "start-exit:weights",
    "dies at the first generation": "crash-first-replay",
    "health 200, generation dead": "generation-dead",
    "first generation too short": "truncate:4",
    "SIGTERM is ignored": "teardown-hang",
    "a process detached, holding the port": "survivor:port",
}
LAUNCHERS = ("tokgate", "sglang", "vllm-style")


@dataclass(frozen=True, slots=True)
class Row:
    """One launch by one launcher."""

    fault: str
    launcher: str
    verdict: str
    verdict_s: float
    ended_s: float
    survivors: int
    rss_mib: float
    gpu_mib: int | None
    port_free: bool


class DriverFault(Exception):
    """A launcher said nothing that could be read."""


def trial(fault: str, launcher: str, sglang: Engine, folder: Path) -> Row:
    """Launch once, stop, count what is left, and end that."""
    name, port = uuid.uuid4().hex, ports.free_port()
    shim = folder / "bin" / "sglang"
    shim.parent.mkdir(exist_ok=True)
    planted = f"--fault {FAULTS[fault]}" if FAULTS[fault] else ""
    shim.write_text(
        f'#!/bin/sh\nshift\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m tokgate.emulator {planted} "$@"\n'
    )
    shim.chmod(0o755)
    python, env = sys.executable, {}
    if launcher == "sglang":
        python, env = sglang.python, dict(sglang.env)
        env["PYTHONPATH"] = os.pathsep.join(sglang.pythonpath)
        # Set to 1, popen_launch_server launches once more after a failure, which would double its times.
        env["HF_HUB_OFFLINE"] = "0"
    job = {
        "launcher": launcher, "port": port, "shim": str(shim), "scale": SCALE, "folder": str(folder),
        "arguments": list(EAGLE3), "model": "emulated", "kind": "emulated", "version": "0.5.15.post1",
        # A shell and an interpreter come first, which scaling does not speed up.
        "floors": {"spawn_s": 10.0},
    }  # fmt: skip
    env["PATH"] = f"{shim.parent}:{os.environ['PATH']}"
    return drive(job, fault, python, {**env, TRIAL: name}, settle_s=0.5, timeout_s=600)


def drive(
    job: dict[str, Any], fault: str, python: str, env: Mapping[str, str], *, settle_s: float, timeout_s: float
) -> Row:
    """Let a launcher launch and stop in a process of its own; count what is left, and end that.

    Args:
        job: for ``launcher_drivers.py``.
        python: runs the driver.
        env: added to this process's own; its ``LAUNCHER_TRIAL`` names all that is started.
        settle_s: after the launcher's own stop, before what is left is counted.
    """
    driver, launcher = ROOT / "benchmarks" / "supervision" / "launcher_drivers.py", job["launcher"]
    try:
        done = subprocess.run(
            [python, str(driver), json.dumps(job)],
            env={**os.environ, **env},
            capture_output=True, text=True, timeout=timeout_s, check=False, cwd=job["folder"],
        )  # fmt: skip
        told = next((line for line in done.stdout.splitlines() if line.startswith('{"verdict"')), None)
        if told is None:
            raise DriverFault(
                f"{launcher}, {fault}: the driver failed:\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
            )
        time.sleep(settle_s)
        left = processes_of(env[TRIAL])
        return Row(
            fault,
            launcher,
            **json.loads(told),
            survivors=len(left),
            rss_mib=sum(proc.rss_bytes(process.pid) or 0 for process in left) / (1 << 20),
            gpu_mib=_gpu_mib({process.pid for process in left}),
            port_free=ports.is_free(job["port"]),
        )
    except subprocess.TimeoutExpired:
        raise DriverFault(f"{launcher}, {fault}: not done within {timeout_s:.0f} s") from None
    finally:
        for process in processes_of(env[TRIAL]):
            proc.send(process, signal.SIGKILL)


def _gpu_mib(pids: set[int]) -> int | None:
    """GPU memory that these processes hold; ``None`` without NVML."""
    nvml = gpu.open_nvml()
    if isinstance(nvml, str):
        return None
    listed = [p for index in range(nvml.count) for p in nvml.processes(index) or ()]
    return sum(p.mib or 0 for p in listed if p.pid in pids)


def processes_of(name: str) -> list[proc.Process]:
    needle = f"{TRIAL}={name}".encode()
    return [p for p in proc.table().values() if p.alive and needle in proc.environment_bytes(p.pid)]


def table(rows: list[Row], head: str) -> str:
    """The table in Markdown, under what it was made on."""
    lines = [
        head,
        "",
        "| fault | launcher | says | verdict s | ended s | survivors | MiB resident left | GPU MiB left | port free |",
        "|---|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        on_gpu = "no GPU" if row.gpu_mib is None else str(row.gpu_mib)
        lines.append(
            f"| {row.fault} | {row.launcher} | {row.verdict} | {row.verdict_s:.1f} | {row.ended_s:.1f} "
            f"| {row.survivors} | {row.rss_mib:.0f} | {on_gpu} | {'yes' if row.port_free else 'no'} |"
        )
    return "\n".join(lines)


def write(text: str) -> None:
    """Replace what stands between the marks of the document."""
    put(DOCUMENT, BEGIN, END, text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sglang", required=True, help="engine.yaml of an environment with SGLang")
    parser.add_argument("--launchers", default=",".join(LAUNCHERS))
    parser.add_argument(
        "--faults", default=",".join(filter(None, FAULTS.values())), help="specs; the control is always run"
    )
    parser.add_argument("--write", action="store_true", help="put the table into the documentation")
    options = parser.parse_args()
    sglang = resolve_engine(options.sglang, ROOT / "environments")
    wanted = {"", *options.faults.split(",")}
    rows: list[Row] = []
    for fault, spec in FAULTS.items():
        for launcher in options.launchers.split(",") if spec in wanted else ():
            with tempfile.TemporaryDirectory() as folder:
                rows.append(trial(fault, launcher, sglang, Path(folder)))
            print(rows[-1], flush=True)
    text = table(
        rows,
        f"Emulated engine with EAGLE-3; SGLang's functions are those of SGLang {sglang.version}; every deadline "
        f"and pause is the shipped one divided by {SCALE}.",
    )
    print(text)
    if options.write:
        write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
