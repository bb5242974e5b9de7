"""Which engine a version, or a commit, means on this machine; made when it is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tokgate import environments
from tokgate.config.engine import Engine, load_engine, resolve_engine
from tokgate.environments import engine as engine_environment
from tokgate.environments.wanted import parse
from tokgate.errors import ConfigFault, HostFault, UsageFault
from tokgate.host.gpu import open_nvml
from tokgate.sglang.version import parse_version

Say = Callable[[str], None]
WITHOUT_NETWORK = (
    "an engine that is here is named by its file or folder, as in --from old/engine.yaml",
    "without network: carry one by ci.airgap (docs/how-to/airgap.md)",
)


def engine_named(text: str, say: Say) -> Engine:
    """An engine by file, by the name of a made environment, as ``emulated[:SCENARIO]``, or by SGLang's version.

    A version means the made environment that has it, one for a GPU before one for the CPU; where there is none it
    is made.

    Args:
        say: told of every step of making one.

    Raises:
        UsageFault: nothing of that name.
        ConfigFault: the file is faulty.
        HostFault: the environment cannot be made, or its server could not be measured here.
    """
    known = _known(text)
    if known is not None:
        return known
    _need_gpu(text)
    try:
        return load_engine(engine_environment.make(parse(text), environments.root(), say).engine_file)
    except HostFault as fault:
        raise HostFault(fault.headline, [*fault.details, *WITHOUT_NETWORK]) from fault


def engine_of_commit(commit: str, repository: Path, say: Say) -> Engine:
    """The engine of a commit of a local clone; built and made when it is not there.

    Raises:
        UsageFault: no such commit, or it cannot be built from.
        HostFault: a build or an installation failed.
    """
    _need_gpu(commit)
    wanted = parse(f"commit:{commit}", repository)
    return load_engine(engine_environment.make(wanted, environments.root(), say).engine_file)


def _need_gpu(what: str) -> None:
    """An environment takes minutes and gigabytes: it is not made where its server could not be measured."""
    absent = open_nvml()
    if isinstance(absent, str):
        raise HostFault(
            f"SGLang {what} has no environment here and is made for a GPU, of which this host shows none: {absent}",
            ["plan without one: --dry-run", "make one all the same: tokgate env make"],
        )


def planned_engine(text: str) -> Engine:
    """As :func:`engine_named`; what has no environment yet is taken as it will be, and not made.

    Raises:
        UsageFault: neither a version nor anything that is there.
    """
    return _known(text) or Engine(name=text, kind="gpu", version=text)


def _known(text: str) -> Engine | None:
    """What is there; ``None`` for a version without an environment.

    Raises:
        UsageFault: not a version, and nothing of that name is there.
    """
    if parse_version(text) is None or Path(text).is_file():
        try:
            return resolve_engine(text, environments.root())
        except ConfigFault:
            raise
        except UsageFault as fault:
            raise UsageFault(
                f"'{text}' is neither a version of SGLang nor an engine file or name: {fault.headline}",
                fault.details,
            ) from fault
    found = sorted(
        (engine for engine in _made(environments.root()) if engine.version == text),
        key=lambda engine: (("gpu", "cpu", "emulated").index(engine.kind), engine.name),
    )
    return found[0] if found else None


def _made(root: Path) -> Iterator[Engine]:
    for path in sorted(root.glob("*/engine.yaml")):
        yield load_engine(path)
