"""Engines of a run: which one is under test, and which it is held against."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from tokgate import environments
from tokgate.config.engine import Engine, EngineKind, emulated_engine, resolve_engine
from tokgate.emulator.scenario import locate
from tokgate.errors import HostFault, UsageFault
from tokgate.gate.cards import check_same_place
from tokgate.host import gpu

KINDS: tuple[EngineKind, ...] = ("gpu", "cpu", "emulated")


def choose(asked: str | None, kind: EngineKind | None) -> tuple[Engine, str]:
    """The engine of a run, and why it is this one, in a phrase.

    Args:
        asked: ``--engine FILE|NAME``.
        kind: forced by a marker (``-m gpu``).

    Raises:
        UsageFault: an unknown engine, one of another kind than was forced, no SGLang for a GPU.
        ConfigFault: a faulty engine file.
        HostFault: none was asked for, and the driver of this host's GPUs does not answer.
    """
    made = environments.root()
    if asked is not None:
        engine = resolve_engine(asked, made)
        if kind is not None and engine.kind != kind:
            raise UsageFault(f"-m {kind} asks for a {kind} engine; --engine {asked} is of kind {engine.kind}")
        return engine, f"--engine {asked}"
    if kind == "emulated":
        return emulated_engine(), "-m emulated"
    if kind == "cpu":
        return resolve_engine("cpu", made), "-m cpu"
    if kind == "gpu":
        return _gpu_engine(made), "-m gpu"
    names = _gpu_names()
    if names:
        return _gpu_engine(made), f"this host has {len(names)} x {names[0]}"
    if (made / "cpu" / "engine.yaml").is_file():
        return emulated_engine(), "no GPU here; real SGLang on the CPU is ready: -m cpu"
    return emulated_engine(), "no GPU here; for real SGLang on the CPU: tokgate env make cpu, then -m cpu"


def _gpu_engine(made: Path) -> Engine:
    """The pinned environment ``gpu`` when made, else SGLang in this very interpreter."""
    if (made / "gpu" / "engine.yaml").is_file():
        return resolve_engine("gpu", made)
    if importlib.util.find_spec("sglang") is None:
        raise UsageFault(
            "no GPU engine: SGLang is not installed here and no environment 'gpu' was made",
            ["give one with --engine FILE (an engine.yaml: kind, version, python, pythonpath, env)"],
        )
    from importlib.metadata import version

    return Engine(name="gpu", kind="gpu", version=version("sglang"))


def reference(asked: str | None, budget_minutes: float | None, engine: Engine) -> Engine | None:
    """The engine of the reference build; ``None`` where none is asked for.

    Args:
        asked: ``--reference-engine FILE|NAME``.
        budget_minutes: of blocks; without, nothing would be launched.
        engine: under test.

    Raises:
        UsageFault: a budget that is no time, none at all, or an engine of another kind, or for other GPUs.
    """
    if budget_minutes is not None and not 0 < budget_minutes < float("inf"):
        raise UsageFault(f"--budget-minutes is a time above 0, got {budget_minutes:g}")
    if asked is None:
        return None
    if budget_minutes is None:
        raise UsageFault("--reference-engine is launched within a budget: give --budget-minutes too")
    found = resolve_engine(asked, environments.root())
    if found.kind != engine.kind:
        raise UsageFault(
            f"--reference-engine {asked} is of kind {found.kind}, the engine under test "
            f"of kind {engine.kind}: they cannot be compared"
        )
    check_same_place(engine, found)
    if found.kind == "emulated":
        locate(found.scenario or "founding")
    return found


def kind_in(expression: str) -> EngineKind | None:
    """The engine kind that a marker expression names (``gpu and not slow``), if it names one.

    Raises:
        UsageFault: it names several.
    """
    words = re.findall(r"(?<!not )\b\w+", expression)
    named = [kind for kind in KINDS if kind in words]
    if len(named) > 1:
        raise UsageFault(f"-m '{expression}' names several engines: {', '.join(named)}; a run has one")
    return named[0] if named else None


def _gpu_names() -> list[str]:
    """NVML names of this host's GPUs; empty without a driver.

    Raises:
        HostFault: there is a driver, and it does not answer: the emulated engine would be green in place of the GPU's.
    """
    nvml = gpu.open_nvml()
    if isinstance(nvml, gpu.Broken):
        raise HostFault(
            f"this host cannot tell its GPUs: {nvml}",
            ["tokgate doctor tells more", "without a GPU: -m emulated, or -m cpu"],
        )
    return [] if isinstance(nvml, str) else nvml.names(nvml.permitted())
