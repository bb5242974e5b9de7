"""Trials of the supervisor on a real engine: its scheduler is suspended, killed and aborted in load, capture and
decode, the gate that holds it is killed, two gates want one GPU. One Markdown table; messages and evidence kept.

    python -m benchmarks.supervision.trials --engine engine.yaml --target DIR --draft DIR --out OUT --budget-s 300
    python -m benchmarks.supervision.trials --engine emulated --out OUT --at-once 1

No speed is measured, so all trials run at the same time (``--at-once``), each in a process of its own. What is not
done when the budget ends is ended and said. ``OUT/assets`` holds what may be published: without the machine's paths,
each file of bounded size. Exit code 0 when every trial asked for ended as it must and left nothing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from benchmarks.supervision.blows import PLAN
from benchmarks.supervision.trial import Row, add_options, gpu_mib
from tokgate.config.engine import Engine, resolve_engine
from tokgate.host import gpu, marker, proc

ROOT = Path(__file__).parents[2]
ASSET_BYTES = 60_000
# Until a trial that was told to end has collected what it must and its reaper has done its work.
END_S = 15.0
OF = "TOKGATE_TRIALS"
"""Variable that every process of these trials inherits: what is left of them is told by it, not by a folder's name
or by what a GPU holds, which may be another gate's."""


class Trials:
    """All trials asked for, so many at once."""

    def __init__(self, options: argparse.Namespace, engine: Engine) -> None:
        self.options = options
        self.engine = engine
        self.rows: dict[str, Row] = {}
        self.left_out: dict[str, str] = {}
        self.token = marker.owner_token()
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, names: list[str]) -> None:
        """Until all have ended or the budget has."""
        until = time.monotonic() + self.options.budget_s - END_S
        waiting = list(names)
        while waiting or self._running:
            if time.monotonic() > until:
                self._stop(waiting)
                return
            while waiting and len(self._running) < self.options.at_once:
                self._begin(waiting.pop(0))
            for name, process in list(self._running.items()):
                if process.poll() is not None:
                    del self._running[name]
                    self._take(name)
            time.sleep(0.2)

    def _begin(self, name: str) -> None:
        options = self.options
        folder = options.out / name
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.supervision.blows", name]
        for option in ("engine", "target", "draft", "floor", "out"):
            command += [f"--{option}", str(getattr(options, option))]
        with (folder / "output.txt").open("wb") as output:
            self._running[name] = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, OF: self.token},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _take(self, name: str) -> None:
        path = self.options.out / name / "row.json"
        if path.is_file():
            self.rows[name] = row = Row(**json.loads(path.read_text(encoding="utf-8")))
            print(f"{name}: {row.got} {row.headline[:150]}", flush=True)
        else:
            output = (self.options.out / name / "output.txt").read_text(errors="replace").strip()
            self.left_out[name] = (output.splitlines() or ["it said nothing"])[-1][:200]

    def _stop(self, waiting: list[str]) -> None:
        """The budget has ended: so do the trials, and by their reapers the servers."""
        for name in waiting:
            self.left_out[name] = "no time was left to begin it"
        for name, process in self._running.items():
            self.left_out[name] = "not done when the budget ended"
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            process.wait()
        time.sleep(END_S / 2)

    def table(self) -> str:
        """All rows as Markdown."""
        lines = [
            f"{self.engine.kind} engine, SGLang {self.engine.version}; {self.options.at_once} at once.",
            "",
            "| trial | got | silent / limit s | blow to end s | evidence s | stacks (native) of | survivors "
            "| MiB held | MiB left |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for row in self.rows.values():
            silent = f"{row.silent_s:.1f} / {row.limit_s:.0f}" if row.limit_s else "-"
            took = f"{row.stacks} ({row.stacks_native}) of {row.processes}" if row.processes else "-"
            lines.append(
                f"| {row.trial} | {row.got}{'' if row.got == row.expected else f', not {row.expected}'} "
                f"| {silent} | {row.noticed_s:.1f} | {_given(row.evidence_s)} | {took} | {row.survivors} "
                f"| {_given(row.mib_held)} | {_given(row.mib_left)} |"
            )
        lines += [f"left out: {name}: {why}" for name, why in self.left_out.items()]
        return "\n".join(lines)

    def is_right(self) -> bool:
        """Whether all ended as they must, and nothing was left or left out."""
        return not self.left_out and all(
            row.got == row.expected and not row.survivors and not row.mib_left for row in self.rows.values()
        )

    def write_assets(self) -> Path:
        """Messages, evidence and rows without the machine's paths, and all of them in one archive."""
        folder: Path = self.options.out / "assets"
        for name in (*self.rows, *self.left_out):
            source = self.options.out / name
            (folder / name).mkdir(parents=True, exist_ok=True)
            for path in (*sorted(source.glob("*.txt")), *source.glob("row.json")):
                if path.name != "output.txt" or (name in self.left_out and path.stat().st_size):
                    text = self._scrubbed(path.read_text(encoding="utf-8", errors="replace"))
                    (folder / name / path.name).write_text(_bounded(text), encoding="utf-8")
            log = source / "engine.log"
            if log.is_file():
                text = self._scrubbed(log.read_text(encoding="utf-8", errors="replace"))
                with gzip.GzipFile(folder / name / "engine.log.gz", "wb", mtime=0) as packed:
                    packed.write(_bounded(text, 10 * ASSET_BYTES).encode())
        folder.mkdir(exist_ok=True)
        (folder / "table.md").write_text(self.table() + "\n", encoding="utf-8")
        archive: Path = self.options.out / "assets.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(folder, "assets")
        return archive

    def _scrubbed(self, text: str) -> str:
        options, engine = self.options, self.engine
        names = {str(options.out.resolve()): "OUT", str(options.out): "OUT", str(ROOT): "TOKGATE"}
        for path in (options.target, options.draft):
            if "/" in path:
                names[str(Path(path).parent)] = "MODEL"
        for number, path in enumerate(engine.pythonpath):
            names[path] = f"SITE{number or ''}"
        names[str(Path(engine.python).parents[1])] = "VENV"
        names[str(Path(sys.prefix))] = "VENV"
        nvml = gpu.open_nvml()
        for uuid in [] if isinstance(nvml, str) else nvml.uuids():
            names[uuid] = "GPU-UUID"
        for path in sorted(names, key=len, reverse=True):
            text = text.replace(path, names[path])
        return text


def _bounded(text: str, limit: int = ASSET_BYTES) -> str:
    if len(text) <= limit:
        return text
    left_out = len(text) - limit
    return f"{text[: limit // 2]}\n... {left_out} characters left out ...\n{text[-limit // 2 :]}"


def _given(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--only", default="", help=f"of {', '.join(PLAN)}; default: all")
    parser.add_argument("--at-once", type=int, default=8, help="trials at the same time (default: 8)")
    parser.add_argument("--budget-s", type=float, default=400.0)
    options = parser.parse_args()
    engine = resolve_engine(options.engine, ROOT / "environments")
    names = options.only.split(",") if options.only else list(PLAN)
    if unknown := set(names) - set(PLAN):
        parser.error(f"no trial {', '.join(sorted(unknown))}; there are {', '.join(PLAN)}")
    options.out.mkdir(parents=True, exist_ok=True)
    trials = Trials(options, engine)
    if engine.kind == "cpu":
        for name in [name for name in names if name.endswith("-in-capture")]:
            names.remove(name)
            trials.left_out[name] = "the CPU engine captures no graphs"
    trials.run(names)
    left = left_of(trials.token)
    archive = trials.write_assets()
    print(trials.table())
    held_mib = gpu_mib(process.pid for process in left)
    on_gpus = "" if held_mib is None else f", {held_mib} MiB on GPUs"
    print(
        f"assets: {archive} ({archive.stat().st_size >> 10} KiB); left of all: {len(left)} processes{on_gpus}"
    )
    return 0 if trials.is_right() and not left else 1


def left_of(token: str) -> list[proc.Process]:
    """Living processes of the servers of these trials. Those of other gates, and the reapers, are none."""
    needle = f"{OF}={token}".encode()
    return [
        item.process
        for item in marker.find_all()
        if needle in proc.environment_bytes(item.process.pid).split(b"\0")
    ]


if __name__ == "__main__":
    raise SystemExit(main())
