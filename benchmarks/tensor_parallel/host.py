"""What the parts of ``benchmarks.tensor_parallel`` share: the host, servers of a profile, ranks, results."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokgate.config.engine import Engine
from tokgate.config.gate import PhaseFloors, load_gate
from tokgate.config.profiles import Profile, load_profiles
from tokgate.host import gpu, marker, ports, proc
from tokgate.host.visible import visible_indices
from tokgate.server.launch import LaunchSpec, start
from tokgate.server.running import Server
from tokgate.sglang.flags import server_arguments

ROOT = Path(__file__).parents[2]
SLACK_MIB = 64
BYTECODE_S = 14.0
"""How long the engine may be compiled."""
# Of one Python process all launches run in: given once, so that every server of the first phase has it.
SHELL = {"NCCL_DEBUG": "WARN", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
PROFILE_ENV = {"NCCL_PROTO": "LL"}


@dataclass(frozen=True, slots=True)
class Seen:
    """One thing that was asked for, and whether it was seen."""

    part: str
    what: str
    ok: bool | None
    """``None``: not applicable here, or no time was left; never counted as seen."""
    said: str = ""

    def __str__(self) -> str:
        word = {True: "seen", False: "NOT SEEN", None: "left out"}[self.ok]
        return f"{self.part:<14} {word:<8} {self.what}{': ' + self.said if self.said else ''}"[:190]


@dataclass(slots=True)
class Host:
    """The host and what was seen on it. Thread-safe.

    Attributes:
        until_s: monotonic time at which the script must have ended.
        config: folder of profiles, workloads and limits.
        look_start_s: how long the start of the server that is looked at lasted, seconds.
    """

    engine: Engine
    target: str
    draft: str
    out: Path
    until_s: float
    tp: int = 2
    began_s: float = field(default_factory=time.monotonic)
    seen: list[Seen] = field(default_factory=list)
    config: Path = ROOT / "perf_tests"
    look_start_s: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self.until_s - time.monotonic()

    @property
    def ranks(self) -> list[str]:
        """``TP0``, ``TP1``, ..."""
        return [f"TP{number}" for number in range(self.tp)]

    def say(self, part: str, what: str, ok: bool | None, said: object = "") -> None:
        """Note what was seen, print it, and write it at once."""
        with self.lock:
            self.seen.append(Seen(part, what, ok, str(said)))
            print(f"{time.monotonic() - self.began_s:6.1f} s  {self.seen[-1]}", flush=True)
            self.write("seen", [[s.part, s.what, s.ok, s.said] for s in self.seen])

    def write(self, name: str, data: object) -> None:
        """``OUT/<name>.json``, at once."""
        path = self.out / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1, default=str) + "\n", encoding="utf-8")

    def keep(self, file: Path, name: str) -> None:
        """A copy of a log, packed."""
        if file.is_file():
            (self.out / "logs").mkdir(parents=True, exist_ok=True)
            (self.out / "logs" / f"{name}.log.gz").write_bytes(gzip.compress(file.read_bytes()))

    def profile(self, name: str, **changes: Any) -> Profile:
        """A shipped profile with as many ranks as there are here, small enough for several beside each other."""
        found = load_profiles(self.config / "profiles.yaml").get(name)
        small = {"tp": self.tp, "mem_fraction": 0.7, "max_total_tokens": 32768, "cuda_graph_max_bs": 8}
        return replace(found, **{**small, "max_running_requests": 8, **changes})

    def start(self, profile: Profile, name: str, *, plant: Plant | None = None, **floors: float) -> Server:
        """Start a server; ``plant`` acts on its ranks meanwhile.

        Raises:
            TokgateError: as :func:`tokgate.server.launch.start`.
        """
        spec = self._spec(profile, name, floors)
        if plant is None:
            return start(spec)
        thread = threading.Thread(target=plant.follow, args=(spec.log_path, spec.env["TRIAL"]), daemon=True)
        thread.start()
        try:
            return start(spec)
        finally:
            plant.cancel()
            thread.join(10)

    def _spec(self, profile: Profile, name: str, floors: Mapping[str, float]) -> LaunchSpec:
        engine, port = self.engine, ports.free_port()
        asked = server_arguments(
            profile, version=engine.version, kind=engine.kind, target=self.target, draft=self.draft,
            host="127.0.0.1", port=port,
        )  # fmt: skip
        argv = [engine.python, *engine.launcher, *asked.argv]
        if engine.kind == "emulated":
            argv += ["--scenario", str(engine.scenario), "--emulated-version", engine.version]
        env = {**engine.env, **asked.env, **profile.env, "TRIAL": f"{name}-{os.getpid()}"}
        if paths := [*engine.pythonpath, *([str(ROOT)] if "tokgate.emulator" in engine.launcher else [])]:
            env["PYTHONPATH"] = os.pathsep.join(paths)
        usual = load_gate(self.config / "gate.yaml").deadlines.floors
        deadlines = usual.get(engine.kind, PhaseFloors()).model_copy(update={"spawn_s": 60.0, **floors})
        return LaunchSpec(
            profile=profile, engine=engine, argv=tuple(argv), env=env, host="127.0.0.1", port=port,
            log_path=self.out / "raw" / f"{name}.log", forensics_dir=self.out / "forensics", deadlines=deadlines,
        )  # fmt: skip


def used_mib() -> dict[int, int] | None:
    """Device memory in use by index of the GPUs that this process may use; ``None`` without NVML."""
    nvml = gpu.open_nvml()
    return None if isinstance(nvml, str) else nvml.used_mib(visible_indices(nvml, {}, nvml.count))


def rank_of(trial: str, rank: str) -> proc.Process | None:
    """The scheduler of a rank of one launch."""
    needle = f"TRIAL={trial}".encode()
    for process in proc.table().values():
        named = process.alive and proc.title(process) == f"sglang::scheduler_{rank}"
        if named and needle in proc.environment_bytes(process.pid).split(b"\0"):
            return process
    return None


def post(url: str, body: object, timeout_s: float) -> int | None:
    """Status of a POST of JSON; ``None`` when there is no answer in time."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


class Plant:
    """Suspends one rank of a launch when its log says so.

    Args:
        rank: whom, ``TP1``.
        line: what the log must show before it is suspended.
        seconds: for how long; ``None``: for good.
    """

    def __init__(self, rank: str, line: str, seconds: float | None) -> None:
        self.rank = rank
        self.seconds = seconds
        self.suspended: proc.Process | None = None
        self._line = re.compile(line)
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Wait no more for the line."""
        self._cancelled.set()

    def follow(self, log: Path, trial: str) -> None:
        """Until the line has come and the rank was suspended, or it is cancelled."""
        while not self._cancelled.wait(0.003):
            if log.is_file() and self._line.search(log.read_text(encoding="utf-8", errors="replace")):
                self._suspend(trial)
                return

    def _suspend(self, trial: str) -> None:
        process = rank_of(trial, self.rank)
        if process is None:
            return
        self.suspended = process
        proc.send(process, signal.SIGSTOP)
        if self.seconds is not None:
            self._cancelled.wait(self.seconds)
            proc.send(process, signal.SIGCONT)


def compile_engine(host: Host) -> None:
    """Compile what the engine has beside its environment, once: where images set PYTHONDONTWRITEBYTECODE, every
    process of every server would do it again."""
    folders = [folder for folder in host.engine.pythonpath if Path(folder).is_dir()]
    if host.engine.kind != "gpu" or not folders:
        return
    began_s = time.monotonic()
    said = "done"
    compiler = subprocess.Popen(
        [host.engine.python, "-m", "compileall", "-qq", "-j", "0", *folders],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        compiler.wait(BYTECODE_S)
    except subprocess.TimeoutExpired:
        # Its workers too; what was compiled stays.
        os.killpg(compiler.pid, signal.SIGKILL)
        compiler.wait()
        said = f"ended after {BYTECODE_S:.0f} s"
    host.write("bytecode", {"said": said, "seconds": time.monotonic() - began_s})


def attempt(host: Host, part: str, body: Callable[[Host], None]) -> None:
    """One part; its failure is said, and the others go on."""
    try:
        body(host)
    except Exception as error:  # noqa: BLE001 - any part may fail without taking the others along
        host.say(part, "the part itself failed", False, f"{type(error).__name__}: {error}".splitlines()[0])
        host.write(f"{part}-error", {"error": repr(error), "details": getattr(error, "details", [])})


def end_leftovers(host: Host) -> list[str]:
    """End every process of this script's launches that is still there."""
    own = marker.owner_token()
    left = [
        m
        for m in marker.find_all()
        if f"{marker.OWNER}={own}".encode() in proc.environment_bytes(m.process.pid)
    ]
    for item in left:
        proc.send(item.process, signal.SIGKILL)
    return [f"{item.process.pid} {item.process.name}" for item in left]
