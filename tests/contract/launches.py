"""What the contract is checked on: two profiles, a synthetic pair, and how engines are launched with them."""

from __future__ import annotations

from pathlib import Path

from tokgate.config.engine import Engine
from tokgate.config.gate import PhaseFloors
from tokgate.config.profiles import Profile, Speculation
from tokgate.host import ports
from tokgate.models.maker import ensure
from tokgate.models.truth import Truth
from tokgate.server.launch import LaunchSpec
from tokgate.sglang.flags import server_arguments

STEPS = 3
# Statistics lines every few steps, since the requests are short. The seed is of sampling; nothing samples.
EXTRA = ("--decode-log-interval", "8")
BASELINE = Profile(
    name="baseline", cuda_graphs=False, max_running_requests=8, random_seed=0, extra_flags=EXTRA
)
EAGLE3 = Profile(
    name="eagle3",
    reference="baseline",
    cuda_graphs=False,
    max_running_requests=8,
    random_seed=0,
    speculation=Speculation(steps=STEPS, topk=1, draft_tokens=STEPS + 1),
    extra_flags=EXTRA,
)
PROFILES = {profile.name: profile for profile in (BASELINE, EAGLE3)}

# Without progress for so long, on two busy cores: a start that takes 30 s alone has taken 120 s.
PATIENT = PhaseFloors(
    spawn_s=120, imports_s=300, weights_s=300, kv_cache_s=120, capture_s=120, warmup_s=180, first_token_s=180
)


def pair(preset: str, folder: Path, accept_length: float) -> Truth:
    """The synthetic pair, made if it is not there."""
    return ensure(preset, folder, seed=0, accept_length=accept_length, steps=STEPS)


def launch_spec(engine: Engine, profile: Profile, model: Path, folder: Path) -> LaunchSpec:
    """A launch of this profile.

    Args:
        model: folder of the pair.
        folder: receives the log and, on a hang, the evidence.
    """
    port = ports.free_port()
    arguments = server_arguments(
        profile,
        version=engine.version,
        kind=engine.kind,
        target=str(model / "target"),
        draft=str(model / "draft") if profile.speculation else None,
        host="127.0.0.1",
        port=port,
    )
    own: tuple[str, ...] = ()
    if engine.kind == "emulated":
        own = ("--scenario", engine.scenario or "founding", "--emulated-version", engine.version)
    return LaunchSpec(
        profile=profile,
        engine=engine,
        argv=(engine.python, *engine.launcher, *arguments.argv, *own),
        env={"PYTHONPATH": ":".join(engine.pythonpath), **engine.env, **arguments.env},
        host="127.0.0.1",
        port=port,
        log_path=folder / f"{profile.name}.log",
        forensics_dir=folder / "forensics",
        deadlines=PATIENT,
    )
