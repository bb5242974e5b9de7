"""Cards: the GPUs that the engine of a run sees, which profiles need more, and the class they are stored under."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tokgate.config.engine import Engine
from tokgate.config.profiles import WHICH_GPUS, Profile
from tokgate.errors import UsageFault
from tokgate.host import gpu
from tokgate.host.host_class import host_class
from tokgate.host.visible import visible_indices

_CHOOSE = "choose GPUs with CUDA_VISIBLE_DEVICES, in the engine file or in the shell"
_RANKS = "give tp in the profile"
PLACING = {
    "--base-gpu-id": _CHOOSE,
    "--gpu-id-step": _CHOOSE,
    "--tp": _RANKS,
    "--tp-size": _RANKS,
    "--tensor-parallel-size": _RANKS,
}
"""Flags that say on which GPUs a server is -> what to do instead."""


def visible(engine: Engine) -> tuple[str, ...] | None:
    """NVML names of the GPUs that the engine may use, in its order.

    Returns:
        ``None`` for an engine without GPUs, and where no driver answers (which is said when they are claimed).
    """
    if engine.kind != "gpu":
        return None
    nvml = gpu.open_nvml()
    if isinstance(nvml, str):
        return None
    return tuple(nvml.names(visible_indices(nvml, engine.env, nvml.count)))


def driver(engine: Engine) -> str | None:
    """Version of the GPU's driver; ``None`` for an engine without GPUs, and where it does not say."""
    if engine.kind != "gpu":
        return None
    nvml = gpu.open_nvml()
    return None if isinstance(nvml, str) else nvml.driver


def check_place(engine: Engine, profiles: Iterable[Profile], flags: Sequence[str]) -> None:
    """Whether a GPU engine's servers will be on the GPUs that the run locks and watches.

    Args:
        flags: ``--engine-flag``.

    Raises:
        UsageFault: a flag puts them on others, or on more.
    """
    if engine.kind != "gpu":
        return
    given = {"--engine-flag": flags} | {f"extra_flags of {p.name}": p.extra_flags for p in profiles}
    for where, items in given.items():
        for flag in (item.partition("=")[0] for item in items):
            if flag in PLACING:
                raise UsageFault(
                    f"{where}: {flag} takes the server to GPUs that this run neither locks nor watches",
                    [PLACING[flag]],
                )


def check_same_place(one: Engine, other: Engine) -> None:
    """Whether servers of two engines that are compared are on the same GPUs, which a run claims by one of them.

    Raises:
        UsageFault: their files choose different ones.
    """
    chosen = [{name: engine.env.get(name) for name in WHICH_GPUS} for engine in (one, other)]
    if one.kind != "gpu" or chosen[0] == chosen[1]:
        return
    told = (
        f"engine '{engine.name}' sets "
        + (", ".join(f"{name}={value}" for name, value in given.items() if value is not None) or "neither")
        for engine, given in zip((one, other), chosen, strict=True)
    )
    raise UsageFault(
        f"two engines are compared on the same GPUs, and these choose others: {'; '.join(told)}",
        [f"leave {' and '.join(WHICH_GPUS)} out of both files, and set them in the shell"],
    )


def lacking(profile: Profile, names: tuple[str, ...] | None) -> str | None:
    """Why a profile cannot be run on so few GPUs; ``None`` when it can, or when that is not known.

    Args:
        names: as :func:`visible` gives them.
    """
    if not names or profile.tp <= len(names):
        return None
    shown = "1 is" if len(names) == 1 else f"{len(names)} are"
    return f"needs {profile.tp} GPUs and {shown} visible here"


def host_classes(
    engine: Engine, profiles: Iterable[Profile], names: tuple[str, ...] | None
) -> dict[str, str]:
    """Profile -> the class under which its figures are stored: with as many GPUs as it uses.

    A profile on one of two GPUs is held against baselines of one GPU, whatever else the run measures.
    """
    return {
        profile.name: host_class(engine.kind, (names or ())[: profile.tp], engine.scenario)
        for profile in profiles
    }


def ranks(profiles: Mapping[str, Profile], chosen: Iterable[str]) -> int:
    """GPUs that the largest of the chosen profiles uses."""
    return max((profiles[name].tp for name in chosen), default=1)
