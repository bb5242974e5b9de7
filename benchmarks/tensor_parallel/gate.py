"""Parts of ``benchmarks.tensor_parallel`` that run gates: locks of several GPUs, and baselines of their class."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.tensor_parallel.host import ROOT, SHELL, Host
from tokgate.gate.results import find_run, read_run, read_verdicts
from tokgate.gate.start import STARTUP, STARTUP_TOGETHER
from tokgate.host import gpu
from tokgate.host.lock import GpuLocks, runtime_dir
from tokgate.host.visible import visible_indices

PROFILES = ("tp2-baseline", "tp2-eagle3-graphs", "tp2-eagle3-eager")
TESTS = [f"perf_tests/test_{name}.py" for name in ("startup", "throughput", "speculation", "cuda_graphs")]
STARTUP_TEST = ("perf_tests/test_startup.py::test_startup",)
SPEED = "chat-bs1"
TRACE_STEPS = 8
# Seconds on two H200s (8 B, 2 requests of 512 tokens a run) of a host that serves others as well: one start, three at
# once, a run and the warm-up before the first, a trace of both ranks, a server that ends, pytest until the first start.
ALONE_S, TOGETHER_S, TRACE_S, END_S, COLLECT_S = 95.0, 140.0, 8.0, 6.0, 5.0
RUN_S = {"tp2-baseline": 4.5, "tp2-eagle3-graphs": 4.0, "tp2-eagle3-eager": 32.0}
SLACK = 1.2
"""A plan must fit with so much more time than expected: what is cut off is not accepted as a whole, and void runs
are repeated."""
# To accept and to see the queued gate get its GPU.
RESERVE_S = 15.0
INTERRUPT_S = 12.0
"""From one signal to the next, when a gate does not end."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one gate measures.

    Attributes:
        profiles: in the order of their servers.
        runs: of the workload, on each.
        together: how many servers start at once. More than one saves starts, and their figures are then kept
            under a name of their own (docs/decisions/start-together.md).
    """

    profiles: tuple[str, ...]
    runs: int
    together: int = 1

    def seconds(self, start_s: float | None = None) -> float:
        """How long it is expected to take.

        Args:
            start_s: of three servers that were started beside each other on this host, where one saw it.
        """
        together_s = TOGETHER_S if start_s is None else start_s
        alone_s = ALONE_S if start_s is None else start_s * ALONE_S / TOGETHER_S
        starts_s = together_s if self.together > 1 else alone_s * len(self.profiles)
        measured_s = sum((self.runs + 1) * RUN_S[name] for name in self.profiles)
        return COLLECT_S + starts_s + measured_s + (TRACE_S + END_S) * len(self.profiles)


def plan(left_s: float, start_s: float | None = None) -> Plan | None:
    """The best plan for which there is time: all profiles before many runs, alone before together.

    Returns:
        ``None``: there is no time for one profile.
    """
    whole = [Plan(PROFILES, 5), Plan(PROFILES, 3), Plan(PROFILES, 3, 3), Plan(PROFILES, 2, 3)]
    fewer = [Plan(PROFILES[:count], 3) for count in (2, 1)]
    return next((own for own in (*whole, *fewer) if SLACK * own.seconds(start_s) <= left_s - RESERVE_S), None)


class Gate:
    """One ``tokgate gate`` as a child.

    Args:
        name: of its results and its output in OUT.
        arguments: added to those that every gate here has.
        environment: added to this process's, without what was planted for the servers of the first phase.
    """

    def __init__(self, host: Host, name: str, *arguments: str, **environment: str) -> None:
        self.results = host.out / "gates" / name
        self.output = host.out / "gates" / f"{name}.txt"
        self.results.mkdir(parents=True, exist_ok=True)
        env = {key: value for key, value in os.environ.items() if key not in SHELL}
        self.began_s = time.monotonic()
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "tokgate", "gate", "-p", "no:cacheprovider",
                    "-m", "gpu", f"--engine={host.out / 'gpu' / 'engine.yaml'}", f"--model={host.out / 'model'}",
                    f"--results={self.results}", f"--baselines={host.out / 'baselines'}",
                    f"--config-folder={host.config}", *arguments,
                ],
                cwd=ROOT, env={**env, **environment}, stdout=output, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def text(self) -> str:
        """Its output so far."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def has_claimed(self) -> bool:
        """Whether it holds its GPUs: only then it makes the folder of its run."""
        return any(self.results.glob("*/run.json"))

    def is_running(self) -> bool:
        """Whether its run has not ended: it holds its GPUs until after it has said that it has."""
        return any(
            read_run(path.parent).get("status") == "running" for path in self.results.glob("*/run.json")
        )

    def wait(self, seconds: float) -> int | None:
        """Its exit code; after so long it is interrupted, and killed when that does not help."""
        for number, more_s in (
            (signal.SIGINT, seconds),
            (signal.SIGTERM, INTERRUPT_S),
            (signal.SIGKILL, 5.0),
        ):
            try:
                return self.process.wait(more_s)
            except subprocess.TimeoutExpired:
                self.process.send_signal(number)
        return self.process.wait(5.0)


def cards() -> dict[str, int]:
    """UUID -> NVML index of the GPUs that this process may use; empty without a driver."""
    nvml = gpu.open_nvml()
    if isinstance(nvml, str):
        return {}
    uuids = nvml.uuids()
    return {uuids[index]: index for index in visible_indices(nvml, {}, nvml.count)}


def refused_by_one(host: Host) -> None:
    """While one GPU is held, a gate that needs two is refused, and leaves the other one unlocked."""
    found = list(cards())
    if len(found) < 2:
        host.say(
            "locks", "a two-GPU gate is refused while one GPU is held", None, "this host has no two GPUs"
        )
        return
    with GpuLocks(found[1:2]):
        asked = Gate(host, "refused-two", f"--profiles={PROFILES[0]}", *STARTUP_TEST)
        code = asked.wait(90)
        ok = code == 3 and f"{found[1]} is in use by another tokgate" in asked.text()
        host.say("locks", "a two-GPU gate is refused while one GPU is held", ok, f"exit code {code}")
        left = (runtime_dir() / f"{found[0]}.lock").exists()
        host.say("locks", "and leaves the other GPU unlocked", not left)


def gate(host: Host, start_s: float | None) -> None:
    """The gate on two GPUs, with gates of one GPU beside it: refused, then queued; then the baselines.

    Args:
        start_s: how long a start lasted in the first phase.
    """
    found = list(cards())
    if len(found) < 2:
        for what in ("a gate of profiles on two GPUs", "baselines under the class of two GPUs"):
            host.say("gate", what, None, "this host has no two GPUs")
        return
    planned = plan(host.left_s, start_s)
    if planned is None:
        host.say("gate", "a gate of profiles on two GPUs", None, f"{host.left_s:.0f} s are left")
        return
    host.write("plan", {**asdict(planned), "expected_s": planned.seconds(start_s), "left_s": host.left_s})
    two = Gate(
        host, "two", f"--profiles={','.join(planned.profiles)}", f"--workloads={SPEED}", f"--runs={planned.runs}",
        f"--start-together={planned.together}", f"--trace-steps={TRACE_STEPS}", *TESTS,
    )  # fmt: skip
    while not two.has_claimed() and two.process.poll() is None and time.monotonic() - two.began_s < 60:
        time.sleep(0.1)
    _beside(host, found)
    queued = Gate(
        host, "queued", "--profiles=baseline", *STARTUP_TEST, "--wait-gpu-s=900",
        CUDA_VISIBLE_DEVICES=str(cards()[found[1]]),
    )  # fmt: skip
    early = False
    while two.process.poll() is None and host.left_s > RESERVE_S:
        early = early or (queued.has_claimed() and two.is_running())
        time.sleep(0.1)
    code = two.wait(0.0 if two.process.poll() is None else 5.0)
    # First what took the time: the baselines.
    _figures(host, two, code, planned.profiles)
    _queued(host, queued, early)


def _beside(host: Host, found: list[str]) -> None:
    held = [uuid for uuid in found[:2] if (runtime_dir() / f"{uuid}.lock").exists()]
    host.say("locks", "a two-GPU gate holds both locks", held == found[:2], ", ".join(held))
    one = Gate(
        host,
        "refused-one",
        "--profiles=baseline",
        *STARTUP_TEST,
        CUDA_VISIBLE_DEVICES=str(cards()[found[1]]),
    )
    code = one.wait(90)
    ok = code == 3 and f"{found[1]} is in use by another tokgate" in one.text()
    host.say("locks", "a one-GPU gate beside it is refused", ok, f"exit code {code}")


def _queued(host: Host, queued: Gate, early: bool) -> None:
    began_s = time.monotonic()
    while not queued.has_claimed() and queued.process.poll() is None and time.monotonic() - began_s < 15:
        time.sleep(0.05)
    waited = "waiting for GPU-" in queued.text()
    got = queued.has_claimed()
    said = f"said that it waits: {waited}, got it before the other ended: {early}, got it: {got}"
    host.say("locks", "a queued one-GPU gate waits, then gets its GPU", got and waited and not early, said)
    # Its lock is what was asked for, not its figures.
    queued.wait(0.0)


def _figures(host: Host, two: Gate, code: int | None, names: tuple[str, ...]) -> None:
    try:
        run = find_run(two.results, "latest")
    except Exception as error:  # noqa: BLE001 - said, whatever it is
        host.say("gate", "a gate of profiles on two GPUs", False, error)
        return
    facts = read_run(run)
    verdicts = read_verdicts(run)
    host.write("gate-verdicts", [[v.line, list(v.body)] for v in verdicts])
    kind = ", ".join(sorted({str(v.kind) for v in verdicts}))
    whole = facts.get("status") == "complete"
    left = [name for name in PROFILES if name not in names]
    said = f"exit code {code}, {facts.get('host_class')}, {len(verdicts)} verdicts: {kind}"
    host.say(
        "gate",
        f"{len(names)} profiles on two GPUs",
        whole and not left,
        said + (f"; no time for {', '.join(left)}" if left else ""),
    )
    for name in names:
        figures = [
            v
            for v in verdicts
            if v.subject == f"{SPEED}[{name}]" and v.evidence.get("metric") == "output_tok_s"
        ]
        host.say("gate", f"output_tok_s of {name}", bool(figures), figures[0].line if figures else "none")
    odd = [v.headline for v in verdicts if v.subject.startswith("startup[") and "odd rank" in v.headline]
    host.say("gate", "control: no odd rank in its starts", not odd, "; ".join(odd))
    _accept(host, run, two.results, names)


def _accept(host: Host, run: Path, results: Path, names: Sequence[str]) -> None:
    """Record the baselines, case by case: a case with a void run is refused, and of a run that was cut short one
    that was not measured wholly."""
    baselines = host.out / "baselines"
    count = json.loads((host.out / "plan.json").read_text(encoding="utf-8"))["together"]
    together = f", {count} servers started together" if count > 1 else ""
    refused = []
    for name in names:
        for workload in (SPEED, STARTUP if count == 1 else STARTUP_TOGETHER):
            done = subprocess.run(
                [sys.executable, "-m", "tokgate", "accept", run.name, f"--results={results}",
                 f"--baselines={baselines}", "--reason=first run on two GPUs" + together,
                 f"--profiles={name}", f"--workloads={workload}"],
                cwd=ROOT, capture_output=True, text=True, check=False, timeout=60, env=_plain(),
            )  # fmt: skip
            if done.returncode:
                refused.append(f"{workload}[{name}] {' '.join(done.stderr.split())[:120]}")
    classes = sorted(path.name for path in baselines.glob("*")) if baselines.is_dir() else []
    files = len(list(baselines.rglob("*.yaml")))
    said = f"{files} files under {', '.join(classes) or 'nothing'}" + (
        f"; not {'; '.join(refused)}" if refused else ""
    )
    ok = not refused and classes == ["nvidia-h200-x2"]
    host.say("gate", "baselines under nvidia-h200-x2", ok, said)


def _plain() -> Mapping[str, str]:
    return {key: value for key, value in os.environ.items() if key not in SHELL}
