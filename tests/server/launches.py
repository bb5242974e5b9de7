"""What the tests of the supervisor launch, and how they hold it to its deadlines."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokgate.config.engine import Engine
from tokgate.config.gate import PhaseFloors
from tokgate.config.profiles import Profile
from tokgate.errors import Hang, TokgateError
from tokgate.host import ports
from tokgate.server.launch import LaunchSpec

FAKE = Path(__file__).with_name("fake_server.py")
# Short enough for a quick suite, long enough for a healthy start on a busy machine.
FLOOR_S = 1.5

SpecMaker = Callable[..., LaunchSpec]
Golden = Callable[[str, TokgateError], None]


def floors(seconds: float, spawn_s: float = 20.0) -> PhaseFloors:
    """The same deadline for every phase but the first, in which an interpreter starts."""
    return PhaseFloors(**{**dict.fromkeys(PhaseFloors.model_fields, seconds), "spawn_s": spawn_s})


def spec_of(folder: Path, changes: dict[str, Any]) -> LaunchSpec:
    """A launch with its files in ``folder``; ``changes`` names its port and command line at least."""
    values: dict[str, Any] = {
        "profile": Profile(name="baseline"),
        "engine": Engine(name="fake", kind="emulated", version="0.5.15.post1"),
        "host": "127.0.0.1",
        "env": {"NCCL_PROTO": "LL"},
        "log_path": folder / "logs" / f"{changes['port']}.log",
        "forensics_dir": folder / "forensics",
        "deadlines": floors(FLOOR_S),
        "teardown_s": 2.0,
    }
    return LaunchSpec(**{**values, **changes})


def spec_of_fake(folder: Path, changes: dict[str, Any] | None = None, **options: str) -> LaunchSpec:
    """A launch of the fake server; words are its options, ``changes`` those of the LaunchSpec."""
    port = ports.free_port()
    words = [f"{key}={value}" for key, value in options.items()]
    argv = (sys.executable, "-S", str(FAKE), str(port), *words)
    return spec_of(folder, {"port": port, "argv": argv, **(changes or {})})


class Lateness:
    """How late this very process is woken: what a busy machine takes from a deadline's precision.

    Attributes:
        worst_s: the longest that a short sleep overran.
    """

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        asleep_s = 0.02
        while not self._over.is_set():
            began = time.monotonic()
            time.sleep(asleep_s)
            self.worst_s = max(self.worst_s, time.monotonic() - began - asleep_s)

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def assert_in_time(self, error: Hang) -> None:
        """Within 1.5 deadlines, but for the time for which this machine let nobody run."""
        assert error.limit_s <= error.waited_s
        assert error.waited_s - self.worst_s <= 1.5 * error.limit_s, (error.headline, self.worst_s)
