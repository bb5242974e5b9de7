"""A/A blocks of a real host, profile by profile, and a session of the gate recorded as stored baselines.

::

    python -m benchmarks.decision.host --engine FILE --model DIR --out OUT --gpus 0,1 --budget-s 330
    python -m benchmarks.decision.host --engine FILE --model DIR --out OUT --gate-gpus 2 --budget-s 480

    python -m benchmarks.decision.host --out OUT --keep tests/assets/NAME     # small enough to be committed

Each GPU of ``--gpus`` calibrates one profile (several GPUs may share one: their sessions are pooled afterwards); all at
the same time, each a ``tokgate calibrate run`` of its own. ``--gate-gpus`` runs the gate without greedy parity beside
them (on one GPU with all profiles, on several with one profile each) and accepts what may be accepted into a copy of
the repository's baselines. Everything ends within the budget.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tokgate.gate.blocks import seal
from tokgate.load.sample import write_json

ROOT = Path(__file__).resolve().parents[2]
STOP_S = 35.0
"""Kept back for the end of servers and for the tables."""
BASELINES = "startup or throughput or latency or memory or accept_length"
"""Of the gate: what becomes a baseline."""


@dataclass
class Part:
    """One command on one GPU.

    Attributes:
        name: of its folder and log.
        process: running.
    """

    name: str
    process: subprocess.Popen[bytes]


def begin(name: str, gpu: str, arguments: list[str], out: Path) -> Part:
    """Start ``tokgate ...`` with one GPU to be seen; its output goes to a log."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tokgate", *arguments],
            cwd=ROOT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    return Part(name, process)


def wait(parts: list[Part], until_s: float) -> None:
    """Until all have ended, or the time is over: then they are asked to end, which stops their servers."""
    for part in parts:
        try:
            part.process.wait(max(0.1, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            part.process.send_signal(signal.SIGTERM)
    for part in parts:
        try:
            part.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            part.process.kill()
            part.process.wait()


def calibrations(options: argparse.Namespace, profile: str, number: int) -> list[str]:
    """Arguments of one calibration."""
    out = options.out / f"calibrate-{number}-{profile}"
    minutes = max(0.2, (options.budget_s - STOP_S - 10) / 60)
    return [
        "calibrate",
        "run",
        f"--engine={options.engine}",
        *([f"--model={options.model}"] if options.model else []),
        f"--profiles={profile}",
        f"--workloads={options.workloads}",
        f"--blocks={options.blocks}",
        f"--budget-minutes={minutes:.2f}",
        f"--results={out / 'results'}",
        f"--baselines={out / 'baselines'}",
    ]


def gate(options: argparse.Namespace, profiles: list[str], out: Path) -> list[str]:
    """Arguments of a gate; of one with both profiles also whether speculation pays."""
    # By its name: the reference of a profile that is chosen alone is chosen with it.
    parts = f"({BASELINES}) and {profiles[0]}" if len(profiles) == 1 else f"{BASELINES} or net_gain"
    kind = "emulated" if options.engine.startswith("emulated") else "gpu"
    return [
        "gate",
        "perf_tests",
        "-m",
        kind,
        "-k",
        parts,
        "-p",
        "no:cacheprovider",
        f"--engine={options.engine}",
        *([f"--model={options.model}"] if options.model else []),
        f"--profiles={','.join(profiles)}",
        *([f"--runs={options.runs}"] if options.runs else []),
        f"--results={out / 'results'}",
        f"--baselines={out / 'baselines'}",
    ]


def accept(out: Path, profiles: list[str]) -> list[str]:
    """Accept case by case, so that a void run costs its own case alone; one line each."""
    from tokgate.config.workloads import load_workloads
    from tokgate.gate.start import STARTUP

    known = load_workloads(ROOT / "perf_tests" / "workloads.yaml", "gpu").workloads
    lines = []
    for profile in profiles:
        for workload in (*known, STARTUP):
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "tokgate",
                    "accept",
                    "latest",
                    f"--profiles={profile}",
                    f"--workloads={workload}",
                    "--reason=a further session, with memory",
                    f"--results={out / 'results'}",
                    f"--baselines={out / 'baselines'}",
                ],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            said = (done.stderr if done.returncode else done.stdout).strip().splitlines() or ["said nothing"]
            taken = "accepted" if done.returncode == 0 else f"refused: {said[0]}"
            lines.append(f"{workload}[{profile}]: {taken}")
    return lines


def sessions(folder: Path) -> list[str]:
    """One line a calibration that a part wrote."""
    from tokgate.analysis.calibration_file import read_calibration

    lines = []
    for path in sorted(folder.rglob("*.calibration.yaml")):
        found = read_calibration(path)
        history = found.history()
        s0 = "no scatter" if history is None else f"s0 {100 * history.s0:.2f} %"
        blocks = sum(len(session.blocks) for session in found.sessions)
        lines.append(f"{found.metric} {found.workload}[{found.profile}]: {blocks} blocks, {s0}")
    return lines


def keep(out: Path, kept: Path) -> None:
    """Sessions and gate runs small enough to be committed: no logs, and Samples without the tokens of the outputs."""
    for plan in sorted(out.glob("calibrate-*/results/calibrate/*/*/*/plan.json")):
        # Several GPUs may have begun a session in the same second.
        number = plan.relative_to(out).parts[0].split("-")[1]
        _copy(plan.parent, kept / "calibrate" / plan.parent.parent.name / f"{plan.parent.name}-{number}")
    for run in sorted(out.glob("gate*/results/2*/run.json")):
        if not run.parent.is_symlink():
            _copy(run.parent, kept / "runs" / run.parent.name)


def _copy(folder: Path, kept: Path) -> None:
    for path in sorted(folder.rglob("*.json*")):
        place = kept / path.relative_to(folder)
        if {"logs", "parity", "forensics", "traces", "lost"} & set(place.relative_to(kept).parts):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "plan.json":
            plan = json.loads(path.read_text(encoding="utf-8"))
            # By its name: where it lay on that machine is nobody's business.
            place.write_text(
                json.dumps(plan | {"model": plan.get("model") and Path(plan["model"]).name}, indent=1)
            )
            continue
        if not path.name.endswith(".sample.json"):
            shutil.copyfile(path, place)
            continue
        sample = json.loads(path.read_text(encoding="utf-8"))
        for request in sample["requests"]:
            request["output_ids"] = None
        place.write_text(json.dumps(sample, separators=(",", ":")), encoding="utf-8")
    for path in sorted(kept.rglob("blocks/[0-9]*.json")):
        _seal_again(path)


def _seal_again(stored: Path) -> None:
    """A kept block is of its kept Samples, which are not those that it was stored with."""
    block = json.loads(stored.read_text(encoding="utf-8"))
    if not seal.is_sealed(block):
        return
    folder = stored.parents[1]
    files = [folder / name for name in block.pop(seal.SAMPLES)]
    del block[seal.DIGEST]
    write_json(stored, seal.sealed(block, folder, files))


def main() -> int:
    """Start everything, wait, tell."""
    options = _arguments()
    if options.keep:
        keep(options.out, options.keep)
        return 0
    began = time.monotonic()
    gpus = [gpu.strip() for gpu in options.gpus.split(",") if gpu.strip()]
    chosen = [options.profiles[number % len(options.profiles)] for number in range(len(gpus))]
    beside = [gpu.strip() for gpu in options.gate_gpus.split(",") if gpu.strip()]
    gates = {
        f"gate-{profile}": (gpu, [profile]) for gpu, profile in zip(beside, options.profiles, strict=False)
    }
    if len(beside) == 1:
        gates = {"gate": (beside[0], options.profiles)}
    parts: list[Part] = []
    # Asked to end: the parts are, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for number, (gpu, profile) in enumerate(zip(gpus, chosen, strict=True)):
            arguments = calibrations(options, profile, number)
            parts.append(begin(f"calibrate-{number}-{profile}", gpu, arguments, options.out))
            # A session is known by the second in which it began.
            time.sleep(1.5)
        for name, (gpu, profiles) in gates.items():
            shutil.copytree(ROOT / "baselines", options.out / name / "baselines", dirs_exist_ok=True)
            parts.append(begin(name, gpu, gate(options, profiles, options.out / name), options.out))
    finally:
        wait(parts, began + options.budget_s - STOP_S)
    good = True
    for part in parts:
        print(f"{part.name}: exit status {part.process.returncode}, log {part.name}.log")
        if part.name in gates:
            lines = accept(options.out / part.name, gates[part.name][1])
            good &= any("accepted" in line for line in lines)
        else:
            lines = sessions(options.out / part.name / "baselines")
            good &= bool(lines)
        print(*(f"  {line}" for line in lines or ["nothing"]), sep="\n")
    print(f"{time.monotonic() - began:.0f} s")
    return 0 if good and parts else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default="emulated:steady")
    parser.add_argument("--model", help="folder with target/ and draft/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="a small copy of what OUT holds, and nothing else"
    )
    parser.add_argument("--budget-s", type=float, default=330.0)
    parser.add_argument("--gpus", default="", help="that calibrate, comma-separated")
    parser.add_argument("--gate-gpus", default="", help="that run the gate; none without")
    parser.add_argument("--runs", type=int, help="of the gate (default: gate.yaml)")
    parser.add_argument(
        "--profiles", type=lambda text: text.split(","), default=["baseline", "eagle3-graphs"]
    )
    parser.add_argument("--workloads", default="chat-bs1", help="that are calibrated")
    parser.add_argument("--blocks", type=int, default=20)
    given = parser.parse_args()
    given.out = given.out.resolve()
    if Path(given.engine).exists():
        given.engine = str(Path(given.engine).resolve())
    return given


if __name__ == "__main__":
    sys.exit(main())
