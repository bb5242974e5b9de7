"""What is launched, and what must be true before."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokgate.config.engine import Engine
from tokgate.config.gate import PhaseFloors
from tokgate.config.profiles import Profile
from tokgate.errors import InterpreterMissing, ModelMissing, PortTaken, ResultsUnwritable
from tokgate.host import ports
from tokgate.server.timeline import limit_s

# A log needs at least this much room, or the engine's own words are lost.
LOG_ROOM_BYTES = 1 << 20
_MODEL_FLAGS = ("--model-path", "--model", "--speculative-draft-model-path", "--speculative-draft-model")


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One server to be launched.

    Attributes:
        argv: complete command line, interpreter first.
        env: everything added to tokgate's own environment.
        log_path: the engine's output; made with its folder, appended to when it exists.
        forensics_dir: where evidence of a hang goes.
        deadlines: shortest no-progress deadline of each phase.
        usual_time_factor: a phase's deadline is max(floor, factor x usual).
        usual_s: usual length of a phase on this host class, seconds, by phase name
            (see :class:`~tokgate.server.timeline.Timeline`); may be empty.
        teardown_s: how long the server may take to end on TERM.
    """

    profile: Profile
    engine: Engine
    argv: tuple[str, ...]
    env: Mapping[str, str]
    host: str
    port: int
    log_path: Path
    forensics_dir: Path
    deadlines: PhaseFloors = field(default_factory=PhaseFloors)
    usual_time_factor: float = 4.0
    usual_s: Mapping[str, float] = field(default_factory=dict)
    teardown_s: float = 15.0

    def limit_s(self, phase: str) -> float:
        """No-progress deadline of a phase, seconds."""
        return limit_s(phase, self.deadlines, self.usual_time_factor, self.usual_s)


def check(spec: LaunchSpec) -> None:
    """Find what would make the launch fail, before anything is started.

    Raises:
        InterpreterMissing, ModelMissing, PortTaken, ResultsUnwritable: in that order.
    """
    _check_interpreter(spec)
    if spec.engine.kind != "emulated":
        for flag, value in zip(spec.argv, spec.argv[1:], strict=False):
            if flag in _MODEL_FLAGS:
                _check_model(flag, value)
    if not ports.is_free(spec.port, spec.host):
        raise port_taken(spec)
    check_room(spec.log_path)


def check_room(log: Path) -> None:
    """Whether the log's folder takes another megabyte.

    Raises:
        ResultsUnwritable: disk full, folder read-only or not to be made.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=log.parent) as file:
            file.write(b"\0" * LOG_ROOM_BYTES)
            file.flush()
        log.touch()
    except FileExistsError as error:
        raise unwritable(log, f"{log.parent} is not a folder") from error
    except OSError as error:
        raise unwritable(log, error.strerror or str(error)) from error


def room_left(log: Path) -> bool:
    """Whether the disk of the log still has room; cheap enough to be asked every second."""
    try:
        state = os.statvfs(log.parent)
    except OSError:
        return True
    return state.f_bavail * state.f_frsize >= LOG_ROOM_BYTES // 16


def unwritable(log: Path, why: str) -> ResultsUnwritable:
    """The error for a log that cannot be written."""
    return ResultsUnwritable(
        f"the engine's log cannot be written to {log}: {why}",
        ["free some room there, or choose another folder for results"],
    )


def port_taken(spec: LaunchSpec) -> PortTaken:
    """The error for a taken port, with its holder."""
    return PortTaken(
        f"port {spec.port} on {spec.host} is taken: {ports.holder(spec.port)}",
        ["stop it, or let tokgate choose a port (port 0)", "a dead tokgate's engine: tokgate reap"],
    )


def _check_interpreter(spec: LaunchSpec) -> None:
    program = spec.argv[0]
    if shutil.which(program) is None:
        path = Path(program)
        why = "does not exist" if not path.exists() else "is not executable"
        raise InterpreterMissing(
            f"the engine's interpreter {program} {why}",
            [f"engine '{spec.engine.name}': check 'python' in its file (--engine)"],
        )


def _check_model(flag: str, value: str) -> None:
    # Anything else is a hub name: only the engine can tell whether it is there.
    if not value.startswith(("/", "./", "../", "~")):
        return
    folder = Path(value).expanduser()
    if not folder.exists():
        raise ModelMissing(
            f"the model of {flag} does not exist: {value}", ["check 'models' in perf_tests/profiles.yaml"]
        )
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ModelMissing(f"the model of {flag} has no config.json: {value}")
