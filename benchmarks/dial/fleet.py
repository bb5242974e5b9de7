"""Servers of one engine that run at the same time, supervised, until a moment at which all of them end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokgate.config.engine import Engine
from tokgate.config.gate import PhaseFloors
from tokgate.config.profiles import Profile
from tokgate.host import ports
from tokgate.server.launch import LaunchSpec, Server, start
from tokgate.server.teardown import Teardown
from tokgate.sglang.flags import server_arguments

# Without progress for so long. Eight servers that start at once share the cores.
PATIENT = PhaseFloors(
    spawn_s=120, imports_s=300, weights_s=300, kv_cache_s=120, capture_s=240, warmup_s=180, first_token_s=180
)


class OutOfTime(Exception):
    """The moment at which everything ends has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedSpec(LaunchSpec):
    """A launch that is given up at ``until_s`` (monotonic), whatever it does."""

    until_s: float

    def limit_s(self, phase: str) -> float:
        """As of any launch; asked at every look.

        Raises:
            OutOfTime: the moment has come.
        """
        if time.monotonic() > self.until_s:
            raise OutOfTime(f"time was up during {phase}")
        return LaunchSpec.limit_s(self, phase)


class Fleet:
    """Servers on one engine.

    Args:
        folder: logs and evidence go there.
        until_s: when all of them end, monotonic.
        at_once: servers at a time.
    """

    def __init__(self, engine: Engine, folder: Path, until_s: float, at_once: int) -> None:
        self.engine = engine
        self.until_s = until_s
        self._folder = folder
        self._together = at_once > 1
        self._slots = threading.Semaphore(at_once)
        self._running: set[Server] = set()
        self._lock = threading.Lock()
        self._stopper = ThreadPoolExecutor(32, "stop")
        self._stops: list[Future[Teardown]] = []

    @property
    def left_s(self) -> float:
        """Seconds until the end, at least one."""
        return max(1.0, self.until_s - time.monotonic())

    @contextmanager
    def server(self, profile: Profile, pair: Path) -> Iterator[Server]:
        """Start a server; it is stopped at the end of the body.

        Raises:
            OutOfTime: the moment came before it was ready.
            TokgateError: as :func:`tokgate.server.launch.start`; or it died during the body.
        """
        if not self._slots.acquire(timeout=self.left_s) or time.monotonic() > self.until_s:
            raise OutOfTime("time was up before its start")
        try:
            server = start(self._spec(profile, pair))
            with self._lock:
                self._running.add(server)
            try:
                with server.watch("questions"):
                    yield server
            finally:
                with self._lock:
                    self._running.discard(server)
                    # With others on the same GPU a stop waits in vain for all of its memory to come back.
                    stop = self._stopper.submit(server.stop)
                    self._stops.append(stop)
                if not self._together:
                    stop.result()
        finally:
            self._slots.release()

    def end(self, within_s: float) -> None:
        """Stop what still runs, and wait for all stops."""
        with self._lock:
            self._stops += [self._stopper.submit(server.stop) for server in self._running]
            stops = list(self._stops)
        wait(stops, within_s)

    def _spec(self, profile: Profile, pair: Path) -> BoundedSpec:
        engine, port = self.engine, ports.free_port()
        arguments = server_arguments(
            profile,
            version=engine.version,
            kind=engine.kind,
            target=str(pair / "target"),
            draft=str(pair / "draft") if profile.speculation else None,
            host="127.0.0.1",
            port=port,
        )
        env = {"OMP_NUM_THREADS": "2", **engine.env, **arguments.env}
        if engine.pythonpath:
            env["PYTHONPATH"] = os.pathsep.join(engine.pythonpath)
        return BoundedSpec(
            profile=profile,
            engine=engine,
            argv=(engine.python, *engine.launcher, *arguments.argv),
            env=env,
            host="127.0.0.1",
            port=port,
            log_path=self._folder / "logs" / f"{profile.name}.log",
            forensics_dir=self._folder / "forensics",
            deadlines=PATIENT,
            teardown_s=5.0,
            until_s=self.until_s,
        )
