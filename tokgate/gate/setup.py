"""Setup: everything a gate run was asked to do, read and checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokgate import baselines
from tokgate.analysis.calibration_file import read_case
from tokgate.config.engine import Engine, EngineKind
from tokgate.config.gate import GateFile, load_gate
from tokgate.config.profiles import Profile, Profiles, load_profiles
from tokgate.config.workloads import Workload, load_workloads
from tokgate.emulator import faults
from tokgate.emulator.scenario import locate
from tokgate.errors import HostFault, UsageFault
from tokgate.gate import cards, engines
from tokgate.gate.pairs import ATTENTION_MODE, GRAPHS, PARTNERS, has_mode_decode
from tokgate.gate.results import check_writable
from tokgate.sglang.flags import applicability


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
    return for_engine(request, *engines.choose(request.engine, request.kind))


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
    cards.check_place(engine, profiles.values(), request.engine_flags)
    names_of_gpus = cards.visible(engine)
    not_applicable = {
        name: reason
        for name, profile in profiles.items()
        if (
            reason := applicability(profile, engine.kind, engine.version)
            or cards.lacking(profile, names_of_gpus)
        )
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
        reference=engines.reference(request.reference_engine, request.budget_minutes, engine),
    )


def _check_fault(catalogue: Profiles, fault: str) -> None:
    name, _, spec = fault.rpartition("=")
    if name:
        catalogue.get(name)
    try:
        faults.parse(spec)
    except faults.FaultSpecError as error:
        raise UsageFault(f"--engine-fault: {error}") from error


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
