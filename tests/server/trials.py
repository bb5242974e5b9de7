"""Trials of the supervisor on a real engine: suspend, kill and abort its scheduler in load, capture and
decode, kill the gate, hold two gates on one GPU. Prints one Markdown table and keeps messages and evidence.

    python tests/server/trials.py --engine engine.yaml --target MODEL --draft DRAFT --out FOLDER
    python tests/server/trials.py --engine emulated --out FOLDER

Exit code 0 when every trial ended as it must, 1 otherwise.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tokgate.config.engine import Engine, resolve_engine
from tokgate.config.gate import PhaseFloors
from tokgate.config.profiles import Profile, Speculation
from tokgate.errors import EngineFault, HostLocked, TokgateError
from tokgate.host import gpu, marker, ports, proc
from tokgate.host.lock import GpuLocks
from tokgate.server import probe
from tokgate.server.launch import LaunchSpec, start
from tokgate.server.running import Server
from tokgate.sglang.flags import server_arguments

GAP_S = 10.0


@dataclass
class Row:
    """One line of the table."""

    trial: str
    expected: str
    got: str
    verdict_s: float
    ended_s: float
    survivors: int
    mib_left: str
    headline: str


class Trials:
    """Runs trials on one engine."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.engine: Engine = resolve_engine(options.engine, Path("environments"))
        self.out: Path = options.out
        self.rows: list[Row] = []
        self.profile = Profile(
            name="eagle3-graphs" if options.draft or self.engine.kind == "emulated" else "baseline",
            attention_backend="triton",
            mem_fraction=0.4,
            max_running_requests=8,
            cuda_graph_max_bs=8,
            prefill_cuda_graphs=False,
            context_length=4096,
            speculation=Speculation(steps=3, topk=1, draft_tokens=4)
            if options.draft or self.engine.kind == "emulated"
            else None,
        )

    def spec(self, trial: str) -> LaunchSpec:
        """The launch for a trial."""
        port = ports.free_port()
        arguments = server_arguments(
            self.profile,
            version=self.engine.version,
            kind=self.engine.kind,
            target=self.options.target,
            draft=self.options.draft or "emulated-draft",
            host="127.0.0.1",
            port=port,
        )
        argv = (self.engine.python, *self.engine.launcher, *arguments.argv)
        env = {**self.engine.env, **arguments.env}
        if self.engine.pythonpath:
            env["PYTHONPATH"] = ":".join(self.engine.pythonpath)
        if self.engine.scenario:
            argv += ("--scenario", self.engine.scenario)
        floor = self.options.floor
        return LaunchSpec(
            profile=self.profile,
            engine=self.engine,
            argv=argv,
            env=env,
            host="127.0.0.1",
            port=port,
            log_path=self.out / f"{trial}.log",
            forensics_dir=self.out,
            deadlines=PhaseFloors(weights_s=floor, capture_s=floor, first_token_s=floor),
        )

    def run(self, trial: str, expected: str, body: Callable[[LaunchSpec], None]) -> None:
        """Run one trial and note how it ended."""
        before = used_mib()
        spec = self.spec(trial)
        began = time.monotonic()
        got, headline, verdict_s = "ready", "", 0.0
        try:
            body(spec)
        except TokgateError as error:
            got, headline = type(error).__name__.upper(), error.headline
            (self.out / f"{trial}.message.txt").write_text(f"{got} {error}\n")
            if isinstance(error, EngineFault) and hasattr(error, "waited_s"):
                verdict_s = error.waited_s
        ended_s = time.monotonic() - began
        survivors = len([item for item in marker.find_all() if item.owner != "elsewhere" and mine(item)])
        after = used_mib()
        left = "-" if after is None or before is None else str(max(0, after - before))
        self.rows.append(Row(trial, expected, got, verdict_s, ended_s, survivors, left, headline))
        print(f"{trial}: {got} {headline}", flush=True)

    def table(self) -> str:
        """All rows as Markdown."""
        lines = [
            "| trial | expected | got | silent for s | whole trial s | survivors | MiB left | headline |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row in self.rows:
            lines.append(
                f"| {row.trial} | {row.expected} | {row.got} | {row.verdict_s:.1f} | {row.ended_s:.1f} "
                f"| {row.survivors} | {row.mib_left} | {row.headline} |"
            )
        return "\n".join(lines)


def mine(item: marker.Marked) -> bool:
    """Whether a marked process was launched by this one."""
    token = f"{marker.OWNER}={marker.owner_token()}".encode()
    return token in proc.environment_bytes(item.process.pid)


def used_mib() -> int | None:
    """Memory in use on all GPUs; ``None`` without NVML."""
    nvml = gpu.open_nvml()
    return None if isinstance(nvml, str) else sum(nvml.used_mib(range(nvml.count)).values())


def strike(number: signal.Signals) -> None:
    """Signal this process's schedulers; before they have a name, their youngest parent's children."""
    ours = [item.process for item in marker.find_all() if mine(item)]
    schedulers = [process for process in ours if "scheduler" in proc.title(process)]
    for process in schedulers or ours[1:]:
        proc.send(process, number)


def in_phase(prefix: str, number: signal.Signals) -> Callable[[LaunchSpec], None]:
    """A trial that strikes when a phase begins."""

    def body(spec: LaunchSpec) -> None:
        struck: list[str] = []

        def announce(phase: str) -> None:
            if phase.startswith(prefix) and not struck:
                struck.append(phase)
                strike(number)

        start(spec, announce).stop()

    return body


def in_decode(number: signal.Signals) -> Callable[[LaunchSpec], None]:
    """A trial that strikes while a long request is answered."""

    def body(spec: LaunchSpec) -> None:
        with start(spec) as server:
            request = probe.FirstRequest(server.host, server.port, 2000)
            try:
                with server.watch("decode", on_death=request.close):
                    follow(server, request, number)
            finally:
                request.close()

    return body


def follow(server: Server, request: probe.FirstRequest, number: signal.Signals) -> None:
    """Strike after some chunks; then wait as a client with a deadline does."""
    seen, since_s, struck = -1, time.monotonic(), False
    while not request.state.finished:
        now = time.monotonic()
        if request.state.chunks != seen:
            seen, since_s = request.state.chunks, now
        if seen > 20 and not struck:
            struck = True
            strike(number)
        if now - since_s > GAP_S:
            raise server.hang("decode", now - since_s, GAP_S)
        time.sleep(0.01)
    if request.state.fault:
        raise ConnectionError(request.state.fault)


def control(spec: LaunchSpec) -> None:
    """Start, say how long each phase took, stop."""
    server = start(spec)
    print("  " + ", ".join(f"{phase.name} {phase.seconds:.1f} s" for phase in server.phases))
    print(f"  captures: {[(c.kind, c.seconds, c.gb, c.available_gb) for c in server.captures]}")
    print(f"  overrides: {'; '.join(map(str, server.resolved())) or 'none'}")
    for name, variables in server.environments.items():
        print(f"  {name}: {variables}")
    teardown = server.stop()
    print(f"  {teardown}")
    assert not teardown.holders and not teardown.killed, teardown


def killed_gate(trials: Trials) -> Callable[[LaunchSpec], None]:
    """SIGKILL of a gate that holds a server: its reaper must end it."""

    def body(spec: LaunchSpec) -> None:
        command = [sys.executable, __file__, "--hold", *sys.argv[1:]]
        gate = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert gate.stdout is not None
        mark = ""
        while not mark.startswith("holds "):
            mark = gate.stdout.readline().strip()
            assert mark or gate.poll() is None, "the gate that was to be killed ended by itself"
        mark = mark.removeprefix("holds ")
        assert marker.find(mark)
        gate.kill()
        gate.communicate()
        began = time.monotonic()
        while marker.find(mark) and time.monotonic() - began < 30:
            time.sleep(0.05)
        print(f"  reaped within {time.monotonic() - began:.2f} s")
        time.sleep(3 if trials.engine.kind == "gpu" else 0)
        assert not marker.find(mark)

    return body


def two_gates(spec: LaunchSpec) -> None:
    """The second of two gates is refused, and told by whom."""
    nvml = gpu.open_nvml()
    names = ["trial"] if isinstance(nvml, str) else nvml.uuids()
    script = (
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tokgate.host.lock import GpuLocks\n"
        f"with GpuLocks({names!r}):\n    print('held', flush=True)\n    sys.stdin.readline()\n"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        with GpuLocks(names):
            pass
    except HostLocked as error:
        assert f"pid {first.pid} " in error.headline
        raise
    finally:
        first.communicate("\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--target", default="emulated")
    parser.add_argument("--draft", default="")
    parser.add_argument(
        "--floor", type=float, default=60.0, help="deadline of load, capture and first token, s"
    )
    parser.add_argument("--only", default="", help="names of trials, separated by commas")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    trials = Trials(options)
    if options.hold:
        print(f"holds {start(trials.spec('held')).launch}", flush=True)
        time.sleep(3600)
    plan: dict[str, tuple[str, Callable[[LaunchSpec], None]]] = {
        "control": ("ready", control),
        "suspend-in-load": ("HANG", in_phase("weights", signal.SIGSTOP)),
        "suspend-in-capture": ("HANG", in_phase("capture:", signal.SIGSTOP)),
        "kill-in-capture": ("EXITED", in_phase("capture:", signal.SIGKILL)),
        "abort-in-capture": ("EXITED", in_phase("capture:", signal.SIGABRT)),
        "suspend-in-decode": ("HANG", in_decode(signal.SIGSTOP)),
        "kill-in-decode": ("EXITED", in_decode(signal.SIGKILL)),
        "gate-killed": ("ready", killed_gate(trials)),
        "two-gates": ("HOSTLOCKED", two_gates),
    }
    wanted = options.only.split(",") if options.only else list(plan)
    for name in wanted:
        expected, body = plan[name]
        trials.run(name, expected, body)
    table = trials.table()
    (options.out / "trials.md").write_text(table + "\n")
    print(table)
    bad = [row for row in trials.rows if row.got != row.expected or row.survivors]
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
