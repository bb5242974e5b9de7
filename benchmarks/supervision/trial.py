"""One trial of the supervisor, in a process of its own: ``python -m benchmarks.supervision.trial NAME ...``.

Started by :mod:`benchmarks.supervision.trials`. Writes ``row.json``, ``message.txt``, the evidence and the
engine's log into its folder; whatever ends it, its reaper ends the server.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tokgate.config.engine import Engine, resolve_engine
from tokgate.config.gate import PhaseFloors
from tokgate.config.profiles import Profile, Speculation
from tokgate.errors import HostLocked, TokgateError
from tokgate.host import gpu, marker, ports, proc
from tokgate.host.lock import GpuLocks
from tokgate.server import probe, stacks
from tokgate.server.launch import LaunchSpec, start
from tokgate.server.running import Server
from tokgate.sglang.flags import server_arguments

GAP_S = 10.0
STRUCK_AFTER_CHUNKS = 20
Body = Callable[["Trial"], None]


@dataclass
class Row:
    """How one trial ended.

    Attributes:
        silent_s: how long nothing happened when the verdict came; of a death 0.
        limit_s: the deadline.
        noticed_s: from the blow to the verdict, evidence and teardown included.
        evidence_s: how long collecting took; ``None`` where nothing was collected.
        stacks, stacks_native, processes: processes with a Python stack, with native frames too, of all.
        mib_held: GPU memory of the trial's processes when it was struck; ``None`` without NVML.
        mib_left: the same after the end, of whichever of them NVML still lists.
    """

    trial: str
    expected: str
    got: str = "nothing"
    silent_s: float = 0.0
    limit_s: float = 0.0
    noticed_s: float = 0.0
    whole_s: float = 0.0
    evidence_s: float | None = None
    stacks: int = 0
    stacks_native: int = 0
    processes: int = 0
    survivors: int = 0
    mib_held: int | None = None
    mib_left: int | None = None
    headline: str = ""


class Trial:
    """One trial: what is launched, whom it strikes, how it ended."""

    def __init__(self, options: argparse.Namespace, expected: str) -> None:
        self.options = options
        self.engine: Engine = resolve_engine(options.engine, Path("environments"))
        self.out: Path = options.out / options.name
        self.out.mkdir(parents=True, exist_ok=True)
        self.row = Row(options.name, expected)
        self.pids: set[int] = set()
        self.schedulers: list[proc.Process] = []
        self.struck_s = 0.0
        eagle = bool(options.draft) or self.engine.kind == "emulated"
        self.profile = Profile(
            name="eagle3-graphs" if eagle else "baseline",
            attention_backend="triton",
            # Servers that start at the same time each see the others' memory come and go: a budget by
            # share would fail, one by tokens holds.
            mem_fraction=0.8,
            max_total_tokens=20_000,
            max_running_requests=8,
            cuda_graph_max_bs=8,
            prefill_cuda_graphs=False,
            context_length=4096,
            speculation=Speculation(steps=3, topk=1, draft_tokens=4) if eagle else None,
        )

    def spec(self, *phases: str) -> LaunchSpec:
        """The launch; the phase in which it will be struck, and the next, have the short deadline."""
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
            env["PYTHONPATH"] = os.pathsep.join(self.engine.pythonpath)
        if self.engine.scenario:
            argv += ("--scenario", self.engine.scenario)
            # As long as on a GPU at least, or the blow comes when the phase has passed.
            for slow in ("weights_s", "capture_target_s"):
                argv += ("--scenario-override", f"startup.{slow}=2.0")
        floors = PhaseFloors(imports_s=240, weights_s=240, kv_cache_s=240, capture_s=240, warmup_s=240)
        floors = floors.model_copy(update={f"{phase}_s": self.options.floor for phase in phases})
        return LaunchSpec(
            profile=self.profile,
            engine=self.engine,
            argv=argv,
            env=env,
            host="127.0.0.1",
            port=port,
            log_path=self.out / "engine.log",
            forensics_dir=self.out,
            deadlines=floors,
        )

    def strike(self, number: signal.Signals) -> None:
        """Signal this trial's schedulers."""
        schedulers = self.schedulers or self.look()
        self.struck_s = time.monotonic()
        for process in schedulers:
            proc.send(process, number)
        self.row.mib_held = self.held_mib()

    def look(self) -> list[proc.Process]:
        """Note the schedulers; before they have a name, their youngest parent's children."""
        ours = self.processes()
        named = [process for process in ours if "scheduler" in proc.title(process)]
        self.schedulers = named
        return named or ours[1:]

    def look_ahead(self) -> None:
        """Until the schedulers are known: a phase may be over before all processes have been looked at."""
        while not self.schedulers and not self.struck_s:
            self.look()
            time.sleep(0.1)

    def processes(self) -> list[proc.Process]:
        """Living processes of this trial's launches, of a gate that it started too."""
        token = f"{marker.OWNER}={marker.owner_token()}".encode()
        gate = f"TRIAL_GATE={os.getpid()}".encode()
        found = [
            item.process
            for item in marker.find_all()
            if {token, gate} & set(proc.environment_bytes(item.process.pid).split(b"\0"))
        ]
        self.pids |= {process.pid for process in found}
        return found

    def held_mib(self) -> int | None:
        """GPU memory of every process that this trial ever had."""
        nvml = gpu.open_nvml()
        if isinstance(nvml, str):
            return None
        listed = [p for index in range(nvml.count) for p in nvml.processes(index) or ()]
        return sum(p.mib or 0 for p in listed if p.pid in self.pids)

    def run(self, body: Body) -> Row:
        """Run it, and note how it ended."""
        row, began = self.row, time.monotonic()
        try:
            body(self)
            row.got = "ready"
        except TokgateError as error:
            row.got, row.headline = type(error).__name__.upper(), error.headline
            row.silent_s, row.limit_s = getattr(error, "waited_s", 0.0), getattr(error, "limit_s", 0.0)
            (self.out / "message.txt").write_text(f"{row.got} {error}\n", encoding="utf-8")
        ended = time.monotonic()
        row.whole_s = ended - began
        row.noticed_s = ended - self.struck_s if self.struck_s else 0.0
        row.survivors = len(self.processes())
        row.mib_left = self.held_mib()
        for path in self.out.glob("hang-*.txt"):
            self._read_evidence(path.read_text(encoding="utf-8"))
        return row

    def _read_evidence(self, text: str) -> None:
        found = re.search(r"^collected in ([\d.]+) s$", text, re.MULTILINE)
        self.row.evidence_s = float(found[1]) if found else None
        sections = re.split(r"^== stack of .*$", text.partition("\n== /proc\n")[0], flags=re.MULTILINE)[1:]
        self.row.processes = len(sections)
        self.row.stacks = sum(bool(stacks.short(section)) for section in sections)
        native = re.compile(r"^    .+ \([^()]*\.so[.\d]*\)$", re.MULTILINE)
        self.row.stacks_native = sum(
            bool(stacks.short(section) and native.search(section)) for section in sections
        )


def in_phase(prefix: str, number: signal.Signals, *short: str) -> Body:
    """A trial that strikes when a phase begins.

    Args:
        short: phases with the short deadline.
    """

    def body(trial: Trial) -> None:
        def announce(phase: str) -> None:
            if phase.startswith(prefix) and not trial.struck_s:
                trial.strike(number)

        looking = threading.Thread(target=trial.look_ahead, daemon=True)
        looking.start()
        start(trial.spec(*short), announce).stop()

    return body


def in_decode(number: signal.Signals) -> Body:
    """A trial that strikes while a long request is answered."""

    def body(trial: Trial) -> None:
        with start(trial.spec()) as server:
            request = probe.FirstRequest(server.host, server.port, 2000)
            try:
                with server.watch("decode", on_death=request.close):
                    _follow(trial, server, request, number)
            finally:
                request.close()

    return body


def _follow(trial: Trial, server: Server, request: probe.FirstRequest, number: signal.Signals) -> None:
    """Strike after some chunks; then wait as a client with a deadline does."""
    seen, since_s = -1, time.monotonic()
    while not request.state.finished:
        now = time.monotonic()
        if request.state.chunks != seen:
            seen, since_s = request.state.chunks, now
        if seen > STRUCK_AFTER_CHUNKS and not trial.struck_s:
            trial.strike(number)
        if now - since_s > GAP_S:
            raise server.hang("decode", now - since_s, GAP_S)
        time.sleep(0.01)
    if request.state.fault:
        raise ConnectionError(request.state.fault)


def control(trial: Trial) -> None:
    """Start, stop, and keep what the start told."""
    server = start(trial.spec())
    trial.processes()
    trial.row.mib_held = trial.held_mib()
    facts = {
        "phases_s": {phase.name: round(phase.seconds, 3) for phase in server.phases},
        "captures": [asdict(capture) for capture in server.captures],
        "overrides": [str(item) for item in server.resolved()],
        "environments": server.environments,
    }
    teardown = server.stop()
    facts["teardown"] = {
        key: getattr(teardown, key)
        for key in ("seconds", "forced", "killed", "gpu_mib_back", "gpu_mib_left", "holders")
    }
    (trial.out / "control.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    trial.row.headline = (
        f"ended in {teardown.seconds:.1f} s, {sum((teardown.gpu_mib_back or {}).values())} MiB"
    )
    assert not teardown.holders and not teardown.killed, teardown


def killed_gate(trial: Trial) -> None:
    """SIGKILL of a gate that holds a server: its reaper must end it."""
    command = [sys.executable, "-m", "benchmarks.supervision.trial", *sys.argv[1:], "--hold"]
    gate = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TRIAL_GATE": str(os.getpid())}
    )
    assert gate.stdout is not None
    told = ""
    while not told.startswith("holds "):
        told = gate.stdout.readline().strip()
        assert told or gate.poll() is None, "the gate that was to be killed ended by itself"
    assert trial.processes(), "the control: there is something to survive"
    trial.row.mib_held = trial.held_mib()
    trial.struck_s = time.monotonic()
    gate.kill()
    gate.communicate()
    while trial.processes() and time.monotonic() - trial.struck_s < 30:
        time.sleep(0.05)
    reaped_s = time.monotonic() - trial.struck_s
    while trial.held_mib() and time.monotonic() - trial.struck_s < 30:
        time.sleep(0.05)
    back_s = time.monotonic() - trial.struck_s
    trial.row.headline = f"processes gone after {reaped_s:.1f} s, GPU memory back after {back_s:.1f} s"


def two_gates(trial: Trial) -> None:
    """The second of two gates is refused, and told by whom."""
    nvml = gpu.open_nvml()
    names = [f"trial-{os.getpid()}"]
    if not isinstance(nvml, str):
        # Only those that this trial was given: another gate may hold the others.
        uuids = nvml.uuids()
        names = [uuids[index] for index in gpu.visible_indices(nvml, {}, nvml.count)]
    script = (
        "import sys\nfrom tokgate.host.lock import GpuLocks\n"
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


# Name -> the right end, and what is done.
PLAN: dict[str, tuple[str, Body]] = {
    "control": ("ready", control),
    "suspend-in-load": ("HANG", in_phase("weights", signal.SIGSTOP, "weights", "kv_cache")),
    "suspend-in-capture": ("HANG", in_phase("capture:", signal.SIGSTOP, "capture")),
    "kill-in-capture": ("EXITED", in_phase("capture:", signal.SIGKILL)),
    "abort-in-capture": ("EXITED", in_phase("capture:", signal.SIGABRT)),
    "suspend-in-decode": ("HANG", in_decode(signal.SIGSTOP)),
    "kill-in-decode": ("EXITED", in_decode(signal.SIGKILL)),
    "gate-killed": ("ready", killed_gate),
    "two-gates": ("HOSTLOCKED", two_gates),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What a trial and the list of all have in common."""
    parser.add_argument("--engine", required=True, help="engine.yaml, or 'emulated'")
    parser.add_argument("--target", default="emulated")
    parser.add_argument("--draft", default="")
    parser.add_argument("--floor", type=float, default=20.0, help="deadline of the struck phase, s")
    parser.add_argument("--out", type=Path, required=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PLAN)
    add_options(parser)
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    expected, body = PLAN[options.name]
    trial = Trial(options, expected)
    if options.hold:
        print(f"holds {start(trial.spec()).launch}", flush=True)
        time.sleep(3600)
    row = trial.run(body)
    (trial.out / "row.json").write_text(json.dumps(asdict(row)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
