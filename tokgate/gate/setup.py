"""Setup: everything a gate run was asked to do, read and checked before anything starts."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokgate import baselines, environments
from tokgate.analysis.calibration_file import read_case
from tokgate.config.engine import Engine, EngineKind, emulated_engine, resolve_engine
from tokgate.config.gate import GateFile, load_gate
from tokgate.config.profiles import Profile, Profiles, load_profiles
from tokgate.config.workloads import Workload, load_workloads
from tokgate.emulator import faults
from tokgate.emulator.scenario import locate
from tokgate.errors import HostFault, UsageFault
from tokgate.gate import cards
from tokgate.gate.pairs import ATTENTION_MODE, GRAPHS, PARTNERS, has_mode_decode
from tokgate.gate.results import check_writable
from tokgate.host import gpu
from tokgate.sglang.flags import applicability

KINDS: tuple[EngineKind, ...] = ("gpu", "cpu", "emulated")


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for, as given on a command line.

    Attributes:
        folder: holds ``profiles.yaml``, ``workloads.yaml`` and ``gate.yaml``.
        kind: engine kind forced by a marker (``-m gpu``), else ``None``.
        engine: ``--engine FILE|NAME``, else ``None``.
        profiles, workloads: names; empty means all that the configuration runs by default.
        model: ``--model NAME|DIR``, else ``None``.
        runs: measured runs a workload, else as in ``gate.yaml``.
        startup_repeats: how often each profile is launched, at least once; the last server is the one measured.
        faults: fault specs for the emulated engine, ``SPEC`` or ``PROFILE=SPEC``.
        engine_flags: flags passed to the engine as they are, after those of the profile.
        force: start what the check of target and draft refuses.
        wait_gpu_s: how long to queue for a GPU that another gate holds.
        budget_minutes: of blocks that settle what is open, in all; ``None``: nothing is settled.
        reference_engine: ``--reference-engine FILE|NAME``: the build that builds are held against.
        trace_steps: decode steps of each workload to record with the engine's profiler; 0: none.
        start_together: how many servers of a GPU engine are started, and stay up, at once.
    """

    folder: Path
    results: Path
    baselines: Path
    kind: EngineKind | None = None
    engine: str | None = None
    profiles: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    model: str | None = None
    runs: int | None = None
    startup_repeats: int = 1
    faults: tuple[str, ...] = ()
    engine_flags: tuple[str, ...] = ()
    force: bool = False
    wait_gpu_s: float = 0.0
    budget_minutes: float | None = None
    reference_engine: str | None = None
    trace_steps: int = 0
    start_together: int = 1


@dataclass(frozen=True, slots=True)
class Setup:
    """A checked request.

    Attributes:
        chosen_because: one phrase for the header: why this engine.
        host_classes: profile -> the folder of its baselines.
        profiles: in the order in which they are run, references first.
        not_applicable: profile -> why it cannot be run here: on this engine, or on so few GPUs.
        reference: engine of the reference build, where one is given.
    """

    request: Request
    engine: Engine
    chosen_because: str
    host_classes: Mapping[str, str]
    gate: GateFile
    catalogue: Profiles
    profiles: Mapping[str, Profile]
    workloads: Mapping[str, Workload]
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    reference: Engine | None = None

    @property
    def host_class(self) -> str:
        """The class of this run, in words: several where its profiles use different numbers of GPUs."""
        return ", ".join(dict.fromkeys(self.host_classes[name] for name in self.profile_names()))

    @property
    def ranks(self) -> int:
        """GPUs that the largest profile of this run uses."""
        return cards.ranks(self.profiles, self.profile_names())

    def profile_names(self, *traits: str) -> list[str]:
        """Profiles that exist on this engine and have every trait, in order.

        Args:
            traits: ``speculative`` (with a reference to be held against), ``traced`` (all or none), or one
                of :mod:`tokgate.gate.pairs`.
        """
        names = [name for name in self.profiles if name not in self.not_applicable]
        if "speculative" in traits:
            names = [n for n in names if self.profiles[n].speculation and self.profiles[n].reference]
        if "traced" in traits and not self.request.trace_steps:
            names = []
        if GRAPHS in traits:
            names = [name for name in names if self.partner(name, GRAPHS) is not None]
        if ATTENTION_MODE in traits:
            names = [name for name in names if has_mode_decode(self.profiles[name])]
        return names

    def partner(self, name: str, *traits: str) -> str | None:
        """The profile of this run that differs from ``name`` in the first trait that has partners, if any."""
        others = [other for other in self.profiles.values() if other.name not in self.not_applicable]
        for trait in traits:
            if trait in PARTNERS:
                found = PARTNERS[trait](self.profiles[name], others)
                return None if found is None else found.name
        return None

    def header(self) -> list[str]:
        """Lines for the head of a report: engine and why, host class, what is run."""
        pin = pinned_version(self.request.folder.parent)
        differs = self.engine.kind == "gpu" and pin not in (None, self.engine.version)
        return [
            f"tokgate: engine {self.engine.name} ({self.engine.kind}, SGLang {self.engine.version}): "
            f"{self.chosen_because}",
            f"tokgate: host class {self.host_class}; {len(self.profile_names())} profiles x "
            f"{len(self.workloads)} workloads, {self.gate.runs.measured} runs each",
            *(
                [f"tokgate: ci/sglang.pin says {pin}, this engine is {self.engine.version}"]
                if differs
                else []
            ),
        ]


def pinned_version(root: Path) -> str | None:
    """The SGLang version under gate, ``ci/sglang.pin`` of a checkout; ``None`` without one."""
    pin = root / "ci" / "sglang.pin"
    return pin.read_text(encoding="utf-8").strip() if pin.is_file() else None


def read(request: Request) -> Setup:
    """Read the configuration and choose the engine.

    Raises:
        ConfigFault: a faulty file, a stored baseline of what is run among them.
        SampleFault: a faulty calibration, where builds are to be judged by blocks.
        UsageFault: an unknown profile, workload, model or engine; faults on a real engine.
        ResultsUnwritable: results cannot be written where they should go.
        HostFault: no profile can be run on this host: each needs more GPUs, say.
    """
    return for_engine(request, *_engine(request))


def for_engine(request: Request, engine: Engine, because: str = "given") -> Setup:
    """As :func:`read`, for an engine that was chosen already: one of two versions, say.

    Raises:
        ConfigFault, SampleFault, UsageFault, ResultsUnwritable: as :func:`read`.
    """
    if request.faults and engine.kind != "emulated":
        raise UsageFault(f"--engine-fault plants faults in the emulated engine; this one is '{engine.name}'")
    if engine.kind == "emulated":
        locate(engine.scenario or "founding")
    gate = load_gate(request.folder / "gate.yaml")
    if request.runs is not None:
        gate = gate.model_copy(update={"runs": gate.runs.model_copy(update={"measured": request.runs})})
    catalogue = load_profiles(request.folder / "profiles.yaml")
    known = load_workloads(request.folder / "workloads.yaml", engine.kind)
    if request.model is not None and not Path(request.model).is_dir():
        _known_model(catalogue, request.model)
    default = tuple(
        name
        for name, profile in catalogue.profiles.items()
        if not profile.on_demand and engine.kind in profile.engines
    )
    names = _with_references(catalogue, request.profiles or default)
    profiles = {name: catalogue.get(name) for name in names}
    names_of_gpus = cards.visible(engine)
    not_applicable = {
        name: reason
        for name, profile in profiles.items()
        if (reason := applicability(profile, engine.kind) or cards.lacking(profile, names_of_gpus))
    }
    if len(not_applicable) == len(profiles):
        raise HostFault(
            "none of the profiles can be run here",
            [f"{name}: {reason}" for name, reason in not_applicable.items()],
        )
    for fault in request.faults:
        _check_fault(catalogue, fault)
    workloads = {name: known.get(name) for name in request.workloads or tuple(known.workloads)}
    if not request.workloads:
        workloads = {name: w for name, w in workloads.items() if engine.kind in w.engines}
    check_writable(request.results)
    if request.baselines.exists() and not request.baselines.is_dir():
        raise UsageFault(f"--baselines {request.baselines} is not a folder")
    if not workloads:
        raise UsageFault(f"no workload in {known.path} runs on an engine of kind '{engine.kind}'")
    host_classes = cards.host_classes(engine, profiles.values(), names_of_gpus)
    for name in profiles:
        # A damaged file would else be found when its figures are judged, after all that was measured.
        for workload in (*workloads, baselines.STARTUP):
            baselines.read(request.baselines, host_classes[name], name, workload)
            if request.reference_engine is not None:
                read_case(request.baselines, host_classes[name], name, workload)
    return Setup(
        request=request,
        engine=engine,
        chosen_because=because,
        host_classes=host_classes,
        gate=gate,
        catalogue=catalogue,
        profiles=profiles,
        workloads=workloads,
        not_applicable=not_applicable,
        reference=_reference(request, engine),
    )


def _reference(request: Request, engine: Engine) -> Engine | None:
    if request.budget_minutes is not None and not 0 < request.budget_minutes < float("inf"):
        raise UsageFault(f"--budget-minutes is a time above 0, got {request.budget_minutes:g}")
    if request.reference_engine is None:
        return None
    if request.budget_minutes is None:
        raise UsageFault("--reference-engine is launched within a budget: give --budget-minutes too")
    reference = resolve_engine(request.reference_engine, environments.root())
    if reference.kind != engine.kind:
        raise UsageFault(
            f"--reference-engine {request.reference_engine} is of kind {reference.kind}, the engine under test "
            f"of kind {engine.kind}: they cannot be compared"
        )
    if reference.kind == "emulated":
        locate(reference.scenario or "founding")
    return reference


def _check_fault(catalogue: Profiles, fault: str) -> None:
    name, _, spec = fault.rpartition("=")
    if name:
        catalogue.get(name)
    try:
        faults.parse(spec)
    except faults.FaultSpecError as error:
        raise UsageFault(f"--engine-fault: {error}") from error


def _engine(request: Request) -> tuple[Engine, str]:
    made = environments.root()
    if request.engine is not None:
        engine = resolve_engine(request.engine, made)
        if request.kind is not None and engine.kind != request.kind:
            raise UsageFault(
                f"-m {request.kind} asks for a {request.kind} engine; "
                f"--engine {request.engine} is of kind {engine.kind}"
            )
        return engine, f"--engine {request.engine}"
    if request.kind == "emulated":
        return emulated_engine(), "-m emulated"
    if request.kind == "cpu":
        return resolve_engine("cpu", made), "-m cpu"
    if request.kind == "gpu":
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


def _known_model(catalogue: Profiles, name: str) -> None:
    if name not in catalogue.models:
        raise UsageFault(
            f"no model '{name}' in {catalogue.path}, and no folder of that name",
            [f"models there: {', '.join(catalogue.models) or 'none'}"],
        )


def _with_references(catalogue: Profiles, names: Sequence[str]) -> list[str]:
    """Names with the profiles that they are judged against, each reference before its first user."""
    ordered: list[str] = []
    for name in names:
        reference = catalogue.get(name).reference
        for wanted in (reference, name):
            if wanted is not None and wanted not in ordered:
                ordered.append(wanted)
    return ordered


def _gpu_names() -> list[str]:
    """NVML names of this host's GPUs; empty without a driver."""
    nvml = gpu.open_nvml()
    return [] if isinstance(nvml, str) else [nvml.gpu(index).name for index in range(nvml.count)]


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
