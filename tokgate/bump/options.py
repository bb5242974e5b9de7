"""A bump's options, as given on a command line and as kept in ``bump.json`` to be taken up again."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from tokgate.bump.question import BumpAsk, Histories, Pairing, check_names, metrics_asked
from tokgate.config.engine import Engine
from tokgate.config.profiles import Profile
from tokgate.emulator.scenario import locate
from tokgate.errors import SampleFault, UsageFault
from tokgate.gate import setup as gate_setup
from tokgate.gate.blocks.neighbours import KV_TOKENS, MEM_FRACTION, SLEEP, beside_others
from tokgate.gate.cards import check_same_place
from tokgate.gate.parity import CASES
from tokgate.gate.setup import Request, Setup
from tokgate.load.sample import write_json
from tokgate.sglang.flags import applicability

FILE = "bump.json"
SEED_BITS = 20
USUAL_PARITY = tuple(name for name in CASES if name != "many")


@dataclass(frozen=True, slots=True)
class BumpOptions:
    """What decides a bump. Budgets do not: they may differ when it is taken up again.

    Attributes:
        old, new: engine file, name, or version.
        folder: of the three YAML files.
        calibrations: files or folders of calibrations.
        parity: names of cases; empty for none.
    """

    old: str
    new: str
    folder: str
    results: str
    baselines: str
    profiles: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    model: str | None = None
    runs: int = 4
    blocks: int = 40
    seed: int = 0
    pairing: Pairing = "pair"
    mem_fraction: float | None = None
    max_total_tokens: int | None = None
    parity: tuple[str, ...] = USUAL_PARITY
    calibrations: tuple[str, ...] = ()
    engine_flags: tuple[str, ...] = ()
    host_class: str | None = None

    def write(self, folder: Path) -> None:
        """Keep them, before anything is measured.

        Raises:
            ResultsUnwritable: the folder cannot be written.
        """
        write_json(folder / FILE, asdict(self))


def read_options(folder: Path) -> BumpOptions:
    """The options of a bump that was begun.

    Raises:
        SampleFault: there is none, or its file is damaged.
    """
    path = folder / FILE
    try:
        data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = {item.name for item in fields(BumpOptions)}
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known
        }
        return BumpOptions(**values)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SampleFault(f"{path}: {error}") from error


def new_seed() -> int:
    """A seed for orders and emulated launches."""
    return secrets.randbits(SEED_BITS)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Checked options.

    Attributes:
        setup: for servers of either engine; its engine is the old one.
        ask: without histories.
        not_applicable: profile -> why it cannot exist on this kind of engine.
        notes: what was done with the options that a reader must know.
    """

    setup: Setup
    ask: BumpAsk
    host_class: str
    notes: tuple[str, ...]

    def with_histories(self, histories: Histories) -> Prepared:
        """With what calibration knows."""
        return replace(self, ask=replace(self.ask, histories=histories))


def prepare(options: BumpOptions, engines: tuple[Engine, Engine], *, wait_gpu_s: float = 0.0) -> Prepared:
    """Read the configuration and check everything that can be checked without starting anything.

    Args:
        engines: the old and the new one.
        wait_gpu_s: how long to queue for a GPU that another gate holds.

    Raises:
        UsageFault: an unknown engine, profile, workload, metric or case; engines of two kinds, or for other GPUs.
        ConfigFault: a faulty file.
    """
    old, new = engines
    if old.kind != new.kind:
        raise UsageFault(f"a {old.kind} engine and a {new.kind} engine are never compared")
    if new.kind == "emulated":
        locate(new.scenario or "founding")  # the old one's is looked for by its setup
    check_same_place(old, new)
    setup = _setup(options, old, wait_gpu_s)
    check_names(setup.gate, Path(options.folder) / "gate.yaml")
    not_applicable = dict(setup.not_applicable)
    for name, profile in setup.profiles.items():
        if name not in not_applicable and (reason := applicability(profile, new.kind, new.version)):
            not_applicable[name] = reason
    names = options.profiles or tuple(name for name in setup.profiles if name not in not_applicable)
    if lost := [name for name in names if name in not_applicable]:
        raise UsageFault(f"profile '{lost[0]}' cannot exist here: {not_applicable[lost[0]]}")
    if not names:
        told = [f"{name}: {reason}" for name, reason in not_applicable.items()]
        raise UsageFault("no profile exists on both engines", told)
    unknown = [name for name in options.parity if name not in CASES]
    if unknown:
        raise UsageFault(f"no parity case '{unknown[0]}'", [f"there are: {', '.join(CASES)}"])
    profiles, notes = _bounded(options, [setup.profiles[name] for name in names], old)
    notes += [f"not applicable: {name}: {reason}" for name, reason in not_applicable.items()]
    ask = BumpAsk(
        old=old,
        new=new,
        profiles=tuple(profiles),
        workloads=tuple(setup.workloads.values()),
        metrics=metrics_asked(setup.gate, options.metrics, old.kind),
        gate=setup.gate,
        seed=options.seed,
        pairing=options.pairing,
        blocks_max=options.blocks,
        runs_per_arm=options.runs,
    )
    return Prepared(setup, ask, options.host_class or setup.host_class, tuple(notes))


def _setup(options: BumpOptions, old: Engine, wait_gpu_s: float) -> Setup:
    request = Request(
        folder=Path(options.folder),
        results=Path(options.results),
        baselines=Path(options.baselines),
        profiles=options.profiles,
        workloads=options.workloads,
        model=options.model,
        engine_flags=options.engine_flags,
        wait_gpu_s=wait_gpu_s,
    )
    return gate_setup.for_engine(request, old)


def _bounded(
    options: BumpOptions, profiles: list[Profile], engine: Engine
) -> tuple[list[Profile], list[str]]:
    """Profiles whose servers can be up at once: memory for all, and no idle one on a core of the measured one."""
    fraction, tokens = options.mem_fraction, options.max_total_tokens
    notes = []
    together = engine.kind != "emulated" and options.pairing != "apart"
    if together and engine.kind == "gpu":
        bound = tokens or (None if all(p.max_total_tokens for p in profiles) else KV_TOKENS)
        notes.append(
            f"several servers at once: KV caches bounded at {bound or 'their own'} tokens "
            f"(mem_fraction {fraction or MEM_FRACTION:g}), {SLEEP}; --one-at-a-time keeps the profiles as they are"
        )
    elif together:
        notes.append(f"several servers at once: {SLEEP}; --one-at-a-time keeps the profiles as they are")
    found = []
    for profile in profiles:
        changed = profile
        if fraction is not None:
            changed = replace(changed, mem_fraction=fraction)
        if tokens is not None:
            changed = replace(changed, max_total_tokens=min(tokens, profile.max_total_tokens or tokens))
        if together:
            changed = beside_others(changed, engine.kind, fraction)
        found.append(changed)
    return found, notes
