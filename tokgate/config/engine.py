"""Which engine runs under the gate: an ``engine.yaml`` or one of the built-in names.

An engine file says how to start SGLang and from which environment, so that the measuring side never
runs inside it::

    kind: gpu                       # gpu, cpu or emulated
    version: 0.5.15.post1           # of SGLang; decides flag names and log formats
    python: /opt/sglang/bin/python
    pythonpath: [/opt/sglang/site]
    launcher: [-m, sglang.launch_server]
    env: {HF_HUB_OFFLINE: "1"}
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tokgate.config.document import Document, Section
from tokgate.errors import UsageFault

EngineKind = Literal["gpu", "cpu", "emulated"]
DEFAULT_LAUNCHER = ("-m", "sglang.launch_server")


class EngineFile(Section):
    """Schema of ``engine.yaml``."""

    kind: EngineKind
    version: str
    python: str | None = None
    pythonpath: list[str] = []
    launcher: list[str] = list(DEFAULT_LAUNCHER)
    env: dict[str, str] = {}
    scenario: str | None = None
    lock: str | None = None
    lock_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine, ready to be launched.

    Attributes:
        name: as given on the command line; for the emulated engine the scenario is part of it.
        kind: ``gpu``, ``cpu`` or ``emulated``; results of different kinds are never compared.
        version: SGLang's version, or for the emulated engine the version whose formats it speaks.
        python: interpreter that runs the launcher.
        pythonpath: put in front of PYTHONPATH.
        launcher: arguments after the interpreter, before the server's own flags.
        env: variables that the engine needs whatever the profile.
        scenario: name or path of a scenario, emulated engine only.
        lock: file that says what the environment holds, kept with every result; None when there is none.
        lock_digest: digest of the environment's lock file, when `tokgate env make` wrote the file.
    """

    name: str
    kind: EngineKind
    version: str
    python: str = sys.executable
    pythonpath: tuple[str, ...] = ()
    launcher: tuple[str, ...] = DEFAULT_LAUNCHER
    env: Mapping[str, str] = field(default_factory=dict)
    scenario: str | None = None
    lock: Path | None = None
    lock_digest: str | None = None

    @property
    def digest(self) -> str:
        """Of all that may change what is measured: what was measured with one engine answers for no other.

        Where a lock says what the environment holds, the place of the environment does not count.
        """
        place = () if self.lock_digest else (self.python, *self.pythonpath)
        facts = (
            self.kind,
            self.version,
            place,
            self.launcher,
            sorted(self.env.items()),
            self.scenario,
            self.lock_digest,
        )
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


EMULATED_VERSION = "0.5.15.post1"
EMULATED_LAUNCHER = ("-m", "tokgate.emulator")


def emulated_engine(scenario: str = "founding", version: str = EMULATED_VERSION) -> Engine:
    """The embedded engine: needs nothing, takes its timing from a scenario."""
    return Engine(
        name=f"emulated-{Path(scenario).stem}",
        kind="emulated",
        version=version,
        launcher=EMULATED_LAUNCHER,
        scenario=scenario,
    )


def load_engine(path: Path) -> Engine:
    """Read an engine file.

    Raises:
        ConfigFault: every fault of the file, each with its line.
    """
    document = Document(path)
    raw = document.validate(EngineFile)
    if raw.kind != "emulated" and raw.python is None:
        document.fault(("kind",), f"an engine of kind '{raw.kind}' must name its interpreter under 'python'")
    if raw.kind != "emulated" and raw.scenario is not None:
        document.fault(("scenario",), "only an emulated engine has a scenario")
    document.check()
    return Engine(
        name=path.stem if path.stem != "engine" else path.parent.name,
        kind=raw.kind,
        version=raw.version,
        python=raw.python or sys.executable,
        pythonpath=tuple(raw.pythonpath),
        launcher=EMULATED_LAUNCHER if raw.kind == "emulated" else tuple(raw.launcher),
        env=dict(raw.env),
        scenario=(raw.scenario or "founding") if raw.kind == "emulated" else None,
        lock=(path.parent / raw.lock).absolute() if raw.lock else None,
        lock_digest=raw.lock_digest,
    )


def resolve_engine(name: str, environments: Path) -> Engine:
    """An engine by ``--engine FILE|NAME``.

    Args:
        name: a path to an engine file, or to a folder with an ``engine.yaml``; ``emulated`` or
            ``emulated:SCENARIO``; or the name of an environment that ``tokgate env make`` wrote under ``environments``.
        environments: folder of made environments (``<name>/engine.yaml``).

    Raises:
        UsageFault: nothing of that name; says what exists.
        ConfigFault: the file is faulty.
    """
    if name == "emulated" or name.startswith("emulated:"):
        scenario = name.partition(":")[2]
        if name != "emulated" and not scenario:
            raise UsageFault("--engine emulated: names no scenario; give one, or leave out the colon")
        return emulated_engine(scenario or "founding")
    path = Path(name)
    if path.suffix in {".yaml", ".yml"} or path.is_file():
        return load_engine(path)
    if (path / "engine.yaml").is_file():
        return load_engine(path / "engine.yaml")
    made = environments / name / "engine.yaml"
    if made.is_file():
        return load_engine(made)
    existing = sorted(p.parent.name for p in environments.glob("*/engine.yaml"))
    raise UsageFault(
        f"no engine named '{name}'",
        [
            f"made environments: {', '.join(existing) or 'none'} (in {environments})",
            "built in: emulated, emulated:SCENARIO",
            "make one with: tokgate env make cpu",
        ],
    )
