"""Starter: from a profile to a running server: model, port, flags of this SGLang version, launch."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokgate import baselines
from tokgate.config.gate import PhaseFloors
from tokgate.config.profiles import Model, Profile
from tokgate.errors import EngineFault, Misconfigured, UsageFault
from tokgate.gate import hub, modelstore
from tokgate.gate.results import Shelf
from tokgate.gate.setup import Setup
from tokgate.host.ports import free_port
from tokgate.models import guard
from tokgate.server.launch import start
from tokgate.server.running import Server
from tokgate.server.spec import LaunchSpec
from tokgate.sglang.flags import server_arguments

HOST = "127.0.0.1"

LONGER_ALLOWED = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"

STARTUP = baselines.STARTUP
"""The workload name under which start-up times are stored and judged."""
STARTUP_TOGETHER = "startup-together"
"""The same of servers that were started at the same time: slower, and no match for those started alone."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a profile serves on this engine.

    Attributes:
        name: kept in results; with a digest where the model is on this disk.
        target, draft: paths or hub names.
        folder: of a model that has ``target/`` and ``draft/`` on this disk.
        revisions: flags that choose the revision of a hub model.
        on_disk: where target and draft are on this disk, if they are.
    """

    name: str
    target: str
    draft: str | None
    folder: Path | None = None
    revisions: tuple[str, ...] = ()
    on_disk: tuple[Path | None, Path | None] = (None, None)

    @property
    def vocabulary(self) -> int | None:
        """Size of the target's vocabulary, where its configuration is on this disk."""
        target = self.on_disk[0]
        return None if target is None else modelstore.vocabulary(target)


def model_of(setup: Setup, profile: Profile) -> Path | Model:
    """The folder, or the configured model, that a profile serves on an engine that is not emulated.

    Raises:
        UsageFault: no model is named for this kind of engine.
    """
    override = setup.request.model
    if override is not None and Path(override).is_dir():
        return Path(override)
    name = override or profile.model or setup.catalogue.default_model.get(setup.engine.kind)
    if name is None:
        raise UsageFault(
            f"profile '{profile.name}' names no model and {setup.catalogue.path} has no default_model "
            f"for engines of kind '{setup.engine.kind}'"
        )
    return setup.catalogue.models[name]


class Starter:
    """Starts servers of a run.

    Attributes:
        forced: what the check of a pair refused and ``--force`` started, one line each.

    Args:
        setup: the checked request.
        results: logs and forensics go there.
        launch_seed: tells the first launch of an emulated engine from others like it, and the next ones by
            counting on; ``None``: all launches of a profile are alike unless starts are repeated.
    """

    def __init__(self, setup: Setup, results: Shelf, *, launch_seed: int | None = None) -> None:
        self._setup = setup
        self._results = results
        self.forced: list[str] = []
        self._launch_seed = launch_seed
        self._lock = threading.Lock()
        self._launches: Counter[str] = Counter()

    def served(self, profile: Profile) -> Served:
        """The model of a profile; a synthetic pair that is not there yet is made.

        Raises:
            UsageFault: no model is named for this kind of engine, or a draft is wanted and not given.
            ModelMissing: a local path that does not exist.
            HostFault: a pair cannot be made (disk).
        """
        setup = self._setup
        if setup.engine.kind == "emulated":
            return Served(name="", target="emulated", draft="emulated" if profile.speculation else None)
        model = model_of(setup, profile)
        if isinstance(model, Path):
            return _pair(model.resolve())
        return self._named(model, speculative=profile.speculation is not None)

    def _named(self, model: Model, *, speculative: bool) -> Served:
        if model.preset is not None:
            folder = modelstore.pair(model.preset, seed=model.seed, accept_length=model.accept_length)
            return _pair(folder)
        assert model.target is not None
        flags: list[str] = []
        if model.target_revision:
            flags += ["--revision", model.target_revision]
        if model.draft_revision and speculative:
            flags += ["--speculative-draft-model-revision", model.draft_revision]
        env = self._setup.engine.env
        return Served(
            modelstore.foretold(model),
            model.target,
            model.draft,
            revisions=tuple(flags),
            on_disk=(
                hub.folder(model.target, model.target_revision, env),
                hub.folder(model.draft, model.draft_revision, env) if model.draft else None,
            ),
        )

    def __call__(self, profile: Profile) -> Server:
        """Start the profile's server and wait until it has generated.

        Raises:
            Misconfigured: target and draft do not fit each other or the algorithm.
            Hang, Exited, HostFault: as :func:`tokgate.server.launch.start`.
        """
        setup = self._setup
        engine = setup.engine
        served = self.served(profile)
        draft = served.draft if profile.speculation else None
        # A hub model that is not on this disk yet only the engine can look into.
        places = served.on_disk
        if profile.speculation is not None and draft is not None and places[0] and places[1]:
            self._check(profile, profile.speculation.algorithm, places[0], places[1])
        port = free_port()
        with self._lock:
            number = self._launches[profile.name]
            self._launches[profile.name] += 1
        arguments = server_arguments(
            profile,
            version=engine.version,
            kind=engine.kind,
            target=served.target,
            draft=draft,
            host=HOST,
            port=port,
        )
        argv = [engine.python, *engine.launcher, *arguments.argv, *served.revisions]
        if engine.kind == "emulated":
            argv += ["--scenario", engine.scenario or "founding", "--emulated-version", engine.version]
            for fault in setup.request.faults:
                name, _, spec = fault.rpartition("=")
                if name in ("", profile.name):
                    argv += ["--fault", spec]
            if self._launch_seed is not None or setup.request.startup_repeats > 1:
                # Launches of an emulated engine are alike unless they are told apart.
                argv += ["--launch-seed", str((self._launch_seed or 0) + number)]
        argv += setup.request.engine_flags
        launch = LaunchSpec(
            profile=profile,
            engine=engine,
            argv=tuple(argv),
            env=self._environment(profile, arguments.env),
            host=HOST,
            port=port,
            log_path=self._results.folder / "logs" / f"{profile.name}-{number}.log",
            forensics_dir=self._results.folder / "forensics",
            deadlines=setup.gate.deadlines.floors.get(engine.kind, PhaseFloors()),
            usual_time_factor=setup.gate.deadlines.usual_time_factor,
            usual_s=self._usual_s(profile),
            teardown_s=setup.gate.deadlines.teardown_s,
        )
        try:
            return start(launch)
        except EngineFault as fault:
            # Where the profile's words are known to mean trouble on this version, that may be the reason.
            fault.details = (*fault.details, *(f"of SGLang {engine.version}: {n}" for n in arguments.notes))
            raise

    def _check(self, profile: Profile, algorithm: str, target: Path, draft: Path) -> None:
        try:
            guard.check(
                target,
                draft,
                algorithm,
                context_length=profile.context_length,
                longer_allowed=_is_set(profile.env.get(LONGER_ALLOWED)),
            )
        except Misconfigured as error:
            if not self._setup.request.force:
                raise
            self.forced.append(f"{profile.name} was started by force: {'; '.join(error.details)}")

    def _environment(self, profile: Profile, needed: Mapping[str, str]) -> dict[str, str]:
        engine = self._setup.engine
        env = {**engine.env, **needed, **profile.env}
        paths = [*engine.pythonpath]
        if engine.kind == "emulated":
            # The emulator is this very package, wherever it was imported from.
            paths.append(str(Path(__file__).parents[2]))
        if paths:
            # An engine with packages of its own gets those alone: none of tokgate's may get in between.
            env["PYTHONPATH"] = os.pathsep.join(paths)
        return env

    def _usual_s(self, profile: Profile) -> dict[str, float]:
        """Usual seconds by phase, from the stored start-up baseline of this host class, if there is one."""
        setup = self._setup
        stored = baselines.read(
            setup.request.baselines, setup.host_classes[profile.name], profile.name, STARTUP
        )
        if stored is None:
            return {}
        usual: dict[str, float] = {}
        for session in stored.sessions:
            for metric, values in session.samples.items():
                if metric.endswith("_s"):
                    usual[metric.removesuffix("_s")] = max(values)
        return usual


def _pair(folder: Path) -> Served:
    target, draft = folder / "target", folder / "draft"
    return Served(modelstore.identity(folder), str(target), str(draft), folder, on_disk=(target, draft))


def _is_set(value: str | None) -> bool:
    return (value or "").lower() in ("1", "true", "yes")
