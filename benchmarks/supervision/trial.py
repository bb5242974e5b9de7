"""One trial of the supervisor: a server of its own, whom it strikes, and how that ended."""

from __future__ import annotations

import argparse
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tokgate.config.engine import Engine, resolve_engine
from tokgate.config.gate import PhaseFloors
from tokgate.config.profiles import Profile, Speculation
from tokgate.errors import TokgateError
from tokgate.host import gpu, marker, ports, proc
from tokgate.server import stacks
from tokgate.server.launch import LaunchSpec
from tokgate.sglang.flags import server_arguments

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
        """GPU memory of every process that this trial ever had; ``None`` as :func:`gpu_mib`."""
        return gpu_mib(self.pids)

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


def gpu_mib(pids: Iterable[int]) -> int | None:
    """GPU memory of some processes, MiB; ``None`` without NVML, or where it does not tell of one of them."""
    nvml = gpu.open_nvml()
    if isinstance(nvml, str):
        return None
    wanted, total_mib = set(pids), 0
    for index in range(nvml.count):
        listed = nvml.processes(index)
        if listed is None:
            return None
        for process in listed:
            if process.pid in wanted:
                if process.mib is None:
                    return None
                total_mib += process.mib
    return total_mib


def add_options(parser: argparse.ArgumentParser) -> None:
    """What a trial and the list of all have in common."""
    parser.add_argument("--engine", required=True, help="engine.yaml, or 'emulated'")
    parser.add_argument("--target", default="emulated")
    parser.add_argument("--draft", default="")
    parser.add_argument("--floor", type=float, default=20.0, help="deadline of the struck phase, s")
    parser.add_argument("--out", type=Path, required=True)
