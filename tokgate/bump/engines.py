"""Which engine a version means on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokgate import environments
from tokgate.config.engine import Engine, EngineKind, load_engine, resolve_engine
from tokgate.errors import UsageFault
from tokgate.sglang.version import parse_version


def engine_named(text: str) -> Engine:
    """An engine by file, by the name of a made environment, as ``emulated[:SCENARIO]``, or by SGLang's version.

    A version means the made environment that has it, one for a GPU before one for the CPU.

    Raises:
        UsageFault: nothing of that name or version was made; says how to make it.
        ConfigFault: the file is faulty.
    """
    if parse_version(text) is None or Path(text).is_file():
        return resolve_engine(text, environments.root())
    found = sorted(
        (engine for engine in _made(environments.root()) if engine.version == text),
        key=lambda engine: (("gpu", "cpu", "emulated").index(engine.kind), engine.name),
    )
    if found:
        return found[0]
    raise UsageFault(
        f"no environment here has SGLang {text}",
        [
            f"make one: tokgate env make sglang=={text}",
            "or give an engine file: --from-engine FILE, --to-engine FILE",
        ],
    )


def planned_engine(text: str, kind: EngineKind = "gpu") -> Engine:
    """As :func:`engine_named`; a version that has no environment yet is taken as it will be."""
    try:
        return engine_named(text)
    except UsageFault:
        if parse_version(text) is None:
            raise
        return Engine(name=text, kind=kind, version=text)


def _made(root: Path) -> Iterator[Engine]:
    for path in sorted(root.glob("*/engine.yaml")):
        yield load_engine(path)
