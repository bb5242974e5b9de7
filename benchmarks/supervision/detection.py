"""How soon the supervisor says what is wrong, and what it adds to a start: two tables, on the emulated engine.

    python -m benchmarks.supervision.detection [--repeats 5] [--pairs 15] [--floor 3] [--write]

Every fault of the list is planted ``--repeats`` times with the phase's deadline at ``--floor`` seconds. *Silent* is
from the last progress to the verdict on the supervisor's clock, the ratio is to the deadline. A death has no
deadline: there the time is from the last write to the engine's log until the error is raised, its last words awaited
and its teardown done. What a start costs is the difference between starts through tokgate and bare ones, taken in
turns: spawn, wait for the ready line, generate eight tokens. ``--write`` puts the tables into
docs/explanation/supervision.md.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.page import put
from benchmarks.supervision.launchers import DOCUMENT
from tokgate.config.engine import emulated_engine
from tokgate.config.gate import PhaseFloors
from tokgate.config.profiles import Profile, Speculation
from tokgate.errors import EngineFault, Hang
from tokgate.host import ports
from tokgate.server import probe
from tokgate.server.launch import LaunchSpec, start
from tokgate.server.running import Server
from tokgate.sglang.flags import server_arguments

BEGIN, END = "<!-- detection: begin -->", "<!-- detection: end -->"
BOUND = 1.5
TOKENS = 60
READY = b"The server is fired up and ready to roll!"
# Fault, what it is, and where it shows: in the start, while it serves, or when it is stopped.
FAULTS = (
    ("capture-hang:draft-extend", "capture that never ends", "start"),
    ("generation-dead", "health 200, generation dead", "start"),
    ("scheduler-stop", "scheduler suspended while it decodes", "serving"),
    ("stall", "stalled stream", "serving"),
    ("teardown-hang", "hang in teardown", "stop"),
    ("start-exit:weights", "traceback while it loads", "start"),
    ("crash-first-replay", "crash at the first replay after good captures", "start"),
    ("abort:4", "C++ abort that the parent misses, in the first generation", "start"),
    ("abort:20", "C++ abort that the parent misses, while it serves", "serving"),
    ("detokenizer-exit", "detokenizer dead", "serving"),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One planted fault and its verdict.

    Attributes:
        silent_s: without progress until the verdict; of a death: since the last write to the log.
        ratio: to the deadline; ``None`` of a death.
        evidence_s: how long collecting took; ``None`` of a death.
    """

    verdict: str
    silent_s: float
    ratio: float | None
    evidence_s: float | None


def spec_of(folder: Path, floor_s: float, fault: str = "") -> LaunchSpec:
    """A launch of the emulated engine with EAGLE-3."""
    engine, port = emulated_engine("steady"), ports.free_port()
    profile = Profile(
        name="eagle3-graphs",
        attention_backend="triton",
        speculation=Speculation(steps=3, topk=1, draft_tokens=4),
    )
    arguments = server_arguments(
        profile,
        version=engine.version,
        kind=engine.kind,
        target="emulated",
        draft="emulated-draft",
        host="127.0.0.1",
        port=port,
    )
    argv = [engine.python, *engine.launcher, *arguments.argv, "--scenario", "steady"]
    argv += ["--fault", fault] if fault else []
    floors = {name: max(floor_s, 30.0) for name in PhaseFloors.model_fields}
    struck = {"capture_s": floor_s, "first_token_s": floor_s}
    return LaunchSpec(
        profile=profile,
        engine=engine,
        argv=tuple(argv),
        env=arguments.env,
        host="127.0.0.1",
        port=port,
        log_path=folder / f"{port}.log",
        forensics_dir=folder,
        deadlines=PhaseFloors(**{**floors, **struck}),
        teardown_s=floor_s,
    )


def plant(fault: str, where: str, floor_s: float) -> Seen:
    """One launch with a fault."""
    with tempfile.TemporaryDirectory(prefix="tokgate-detection-") as name:
        spec = spec_of(Path(name), floor_s, fault)
        try:
            server = start(spec)
            if where == "serving":
                with server:
                    _serve(server, floor_s)
            teardown = server.stop()
            if teardown.hang is None:
                raise RuntimeError(f"fault {fault} did not show")
            return _seen(teardown.hang, spec)
        except EngineFault as error:
            return _seen(error, spec)


def _seen(error: EngineFault, spec: LaunchSpec) -> Seen:
    if isinstance(error, Hang):
        found = re.search(r"^collected in ([\d.]+) s$", error.files[0].read_text(), re.MULTILINE)
        evidence_s = float(found[1]) if found else None
        return Seen("HANG", error.waited_s, error.waited_s / error.limit_s, evidence_s)
    silent_s = time.time() - spec.log_path.stat().st_mtime
    return Seen(type(error).__name__.upper(), silent_s, None, None)


def _serve(server: Server, gap_s: float) -> None:
    """A client with a deadline on gaps, as the load generator is."""
    request = probe.FirstRequest(server.host, server.port, TOKENS)
    seen, since_s = -1, time.monotonic()
    try:
        with server.watch("decode", on_death=request.close):
            while not request.state.finished:
                if request.state.chunks != seen:
                    seen, since_s = request.state.chunks, time.monotonic()
                if time.monotonic() - since_s > gap_s:
                    raise server.hang("decode", time.monotonic() - since_s, gap_s)
                time.sleep(0.01)
            if request.state.fault:
                raise ConnectionError(request.state.fault)
    finally:
        request.close()


def bare_start_s(folder: Path, floor_s: float) -> float:
    """Spawn, wait for the ready line, generate: seconds, with nothing of tokgate in between."""
    spec = spec_of(folder, floor_s)
    began = time.monotonic()
    with spec.log_path.open("wb") as log:
        process = subprocess.Popen(
            spec.argv, env={**os.environ, **spec.env}, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        while READY not in spec.log_path.read_bytes():
            time.sleep(0.005)
        request = probe.FirstRequest(spec.host, spec.port)
        while not request.state.finished:
            time.sleep(0.005)
        took_s = time.monotonic() - began
        request.close()
        return took_s
    finally:
        process.terminate()
        process.wait()


def supervised_start_s(folder: Path, floor_s: float) -> float:
    """The same through tokgate."""
    began = time.monotonic()
    server = start(spec_of(folder, floor_s))
    took_s = time.monotonic() - began
    server.stop()
    return took_s


def overhead(repeats: int, floor_s: float) -> list[tuple[float, float]]:
    """Pairs of starts, bare and supervised, the order changing from pair to pair; seconds."""
    pairs = []
    with tempfile.TemporaryDirectory(prefix="tokgate-detection-") as name:
        for number in range(repeats):
            kinds: list[Callable[[Path, float], float]] = [bare_start_s, supervised_start_s]
            took = {kind: kind(Path(name), floor_s) for kind in kinds[:: 1 if number % 2 else -1]}
            pairs.append((took[bare_start_s], took[supervised_start_s]))
    return pairs


def tables(found: dict[str, list[Seen]], pairs: list[tuple[float, float]], floor_s: float) -> str:
    """Both tables in Markdown."""
    count = len(next(iter(found.values())))
    lines = [
        f"Emulated engine, {count} launches a fault, deadline {floor_s:g} s; bound {BOUND:g} x the deadline.",
        "",
        "| fault | verdict | silent s, median (most) | ratio, median (most) | evidence s, most |",
        "|---|---|---:|---:|---:|",
    ]
    for fault, what, _ in FAULTS:
        if fault not in found:
            continue
        all_of = found[fault]
        verdicts = ", ".join(sorted({seen.verdict for seen in all_of}))
        ratios = [seen.ratio for seen in all_of if seen.ratio is not None]
        evidence = [seen.evidence_s for seen in all_of if seen.evidence_s is not None]
        ratio = f"{statistics.median(ratios):.2f} ({max(ratios):.2f})" if ratios else "-"
        silent = [seen.silent_s for seen in all_of]
        lines.append(
            f"| {what} (`{fault}`) | {verdicts} | {statistics.median(silent):.2f} ({max(silent):.2f}) | {ratio} "
            f"| {f'{max(evidence):.1f}' if evidence else '-'} |"
        )
    if pairs:
        added = [supervised - bare for bare, supervised in pairs]
        bare, supervised = (statistics.median(column) for column in zip(*pairs, strict=True))
        lines += [
            "",
            "| start, from spawn to eight tokens | s, median |",
            "|---|---:|",
            f"| bare | {bare:.2f} |",
            f"| through tokgate | {supervised:.2f} |",
            f"| added, {len(added)} pairs: median (least .. most) | "
            f"{statistics.median(added):.2f} ({min(added):.2f} .. {max(added):.2f}) |",
        ]
    return "\n".join(lines)


def write(text: str) -> None:
    """Replace what stands between the marks of the document."""
    put(DOCUMENT, BEGIN, END, text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=15, help="of starts, bare and through tokgate")
    parser.add_argument("--floor", type=float, default=3.0, help="deadline, s")
    parser.add_argument("--faults", default="", help="only these, separated by commas")
    parser.add_argument("--write", action="store_true", help="put the tables into the documentation")
    options = parser.parse_args()
    wanted = options.faults.split(",") if options.faults else [fault for fault, _, _ in FAULTS]
    found: dict[str, list[Seen]] = {}
    for fault, _, where in FAULTS:
        for _ in range(options.repeats if fault in wanted else 0):
            found.setdefault(fault, []).append(plant(fault, where, options.floor))
            print(fault, found[fault][-1], flush=True)
    text = tables(found, overhead(options.pairs, options.floor), options.floor)
    print(text)
    if options.write:
        write(text)
    late = [
        seen for all_of in found.values() for seen in all_of if seen.ratio is not None and seen.ratio > BOUND
    ]
    return 1 if late else 0


if __name__ == "__main__":
    raise SystemExit(main())
