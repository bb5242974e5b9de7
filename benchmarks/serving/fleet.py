"""The servers that ``benchmarks.serving`` compares: started at the same time, stopped at the end."""

from __future__ import annotations

import argparse
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

from tokgate.config.engine import Engine
from tokgate.config.gate import PhaseFloors
from tokgate.config.profiles import Profile
from tokgate.errors import TokgateError
from tokgate.host import ports
from tokgate.server.launch import start
from tokgate.server.running import Server
from tokgate.server.spec import LaunchSpec
from tokgate.sglang.flags import server_arguments

# Two servers on one GPU: each takes what it needs, not a share of what the other has not taken yet.
TOTAL_TOKENS = 131_072
PATIENT = PhaseFloors(
    spawn_s=60, imports_s=240, weights_s=240, kv_cache_s=120, capture_s=240, warmup_s=120, first_token_s=120
)


class Fleet:
    """One server a profile.

    Args:
        engine: that runs them.
        profiles: what to run.
        options: ``target`` and ``draft`` of the command line.
        logs: folder of their logs.

    Attributes:
        running: by the name of their profile.
        notes: what befell those that did not start.
    """

    def __init__(
        self, engine: Engine, profiles: list[Profile], options: argparse.Namespace, logs: Path
    ) -> None:
        self.profiles = profiles
        self.running: dict[str, Server] = {}
        self.notes: list[str] = []
        self._engine, self._options, self._logs = engine, options, logs

    def start(self, within_s: float) -> None:
        """Start them all; those that do not stand in time are noted."""
        threads = [threading.Thread(target=self._start, args=(p,), daemon=True) for p in self.profiles]
        until = time.monotonic() + within_s
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        for profile in self.profiles:
            if profile.name not in self.running:
                self.notes.append(f"{profile.name}: no server")

    def stop(self) -> None:
        """Stop them all."""
        threads = [threading.Thread(target=server.stop) for server in self.running.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _start(self, profile: Profile) -> None:
        try:
            self.running[profile.name] = start(self._spec(profile))
        except TokgateError as error:
            self.notes.append(f"{profile.name}: {error.headline}")

    def _spec(self, profile: Profile) -> LaunchSpec:
        options, engine = self._options, self._engine
        profile = replace(profile, max_total_tokens=profile.max_total_tokens or TOTAL_TOKENS)
        port = ports.free_port()
        made = server_arguments(
            profile,
            version=engine.version,
            kind=engine.kind,
            target=str(options.target),
            draft=str(options.draft) if profile.speculation else None,
            host="127.0.0.1",
            port=port,
        )
        own: tuple[str, ...] = ()
        env = {**engine.env, **made.env, **profile.env}
        paths = [*engine.pythonpath]
        if engine.kind == "emulated":
            own = ("--scenario", engine.scenario or "founding", "--emulated-version", engine.version)
            paths.append(str(Path(__file__).parents[2]))
        if paths:
            env["PYTHONPATH"] = os.pathsep.join(paths)
        return LaunchSpec(
            profile=profile,
            engine=engine,
            argv=(engine.python, *engine.launcher, *made.argv, *own),
            env=env,
            host="127.0.0.1",
            port=port,
            log_path=self._logs / f"{profile.name}.log",
            forensics_dir=self._logs,
            deadlines=PATIENT,
        )
