"""Share: several GPUs of a host dealt out, so that profiles are measured side by side.

Every share is a run of its own on GPUs of its own. A profile takes its reference along, so that whatever is
compared was measured on the same GPU; a reference that several shares need is measured in each.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tokgate.errors import HostFault, UsageFault
from tokgate.gate.setup import Setup
from tokgate.host import gpu
from tokgate.host.visible import VISIBLE, visible_indices

SHARES = "TOKGATE_SHARES"
"""Variable that tells a run how many runs it is one of: they share the chance of a false alarm."""


def of_how_many() -> int:
    """How many shares this run is one of; 1 for a run by itself."""
    return max(1, int(os.environ.get(SHARES, "1")))


@dataclass(frozen=True, slots=True)
class Share:
    """GPUs and the profiles that are measured on them.

    Attributes:
        gpus: NVML indices, as many as its profiles have ranks.
        profiles: without the references that they take along.
    """

    gpus: tuple[int, ...]
    profiles: tuple[str, ...]

    @property
    def name(self) -> str:
        """``0`` or ``0+1``."""
        return "+".join(map(str, self.gpus))


def numbers(text: str) -> tuple[int, ...]:
    """GPU numbers of ``0,1``.

    Raises:
        UsageFault: no number, or one twice.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise UsageFault(f"--gpus takes NVML numbers like 0,1; got '{text}'")
    found = tuple(map(int, parts))
    if len(set(found)) < len(found):
        raise UsageFault(f"--gpus names a GPU twice: '{text}'")
    return found


def deal(setup: Setup, gpus: Sequence[int], *, emulated: bool) -> list[Share]:
    """Deal GPUs and profiles out.

    Args:
        gpus: NVML indices.
        emulated: the emulated engine was asked for: GPUs are then only numbers.

    Returns:
        One share a group of GPUs, none of them empty; fewer when there are fewer profiles. Profiles that use
        different numbers of GPUs are in different shares, those of the fewest first: shares of one size can
        run side by side. Profiles that need more GPUs than are named are in no share: see :func:`left_out`.

    Raises:
        HostFault: no driver, or no such GPU.
        UsageFault: an engine that uses no GPU, or profiles that need more than there are.
    """
    if not emulated:
        _check(setup, gpus)
    names = [name for name in setup.profile_names() if setup.profiles[name].tp <= len(gpus)]
    if not names:
        raise UsageFault(f"the profiles need {setup.ranks} GPUs at once and --gpus names {len(gpus)}")
    references = {setup.profiles[name].reference for name in names}
    # Profiles of one reference are neighbours, so that it is measured on as few GPUs as may be.
    users = sorted((n for n in names if n not in references), key=lambda n: setup.profiles[n].reference or n)
    shares = []
    for size in sorted({setup.profiles[name].tp for name in users}):
        shares += _of_size(size, [name for name in users if setup.profiles[name].tp == size], gpus)
    return shares


def _of_size(size: int, users: Sequence[str], gpus: Sequence[int]) -> list[Share]:
    groups = [tuple(gpus[i : i + size]) for i in range(0, len(gpus) - size + 1, size)][: len(users)]
    cuts = [round(i * len(users) / len(groups)) for i in range(len(groups) + 1)]
    return [
        Share(group, tuple(users[low:high])) for group, low, high in zip(groups, cuts, cuts[1:], strict=False)
    ]


def left_out(setup: Setup, gpus: Sequence[int]) -> dict[str, str]:
    """Profiles that need more GPUs than are named -> that they do."""
    return {
        name: f"needs {setup.profiles[name].tp} GPUs and --gpus names {len(gpus)}"
        for name in setup.profile_names()
        if setup.profiles[name].tp > len(gpus)
    }


def _check(setup: Setup, gpus: Sequence[int]) -> None:
    nvml = gpu.open_nvml()
    if isinstance(nvml, str):
        raise HostFault(f"--gpus needs GPUs and this host shows none: {nvml}", ["tokgate doctor tells more"])
    if setup.engine.kind != "gpu":
        raise UsageFault(f"--gpus deals out GPUs; the engine '{setup.engine.name}' uses none")
    if VISIBLE in setup.engine.env:
        raise UsageFault(
            f"--gpus gives each share GPUs of its own, but the engine '{setup.engine.name}' sets {VISIBLE} for all",
            ["leave it out of the engine file, or measure without --gpus"],
        )
    absent = [str(index) for index in gpus if index >= nvml.count]
    if absent:
        raise HostFault(f"--gpus: no GPU {', '.join(absent)}; this host has {nvml.count}, from 0")
    visible = visible_indices(nvml, {}, nvml.count)
    if hidden := [str(index) for index in gpus if index not in visible]:
        raise UsageFault(
            f"--gpus names GPU {', '.join(hidden)}, which {VISIBLE}={os.environ.get(VISIBLE, '')} hides",
            [f"--gpus takes NVML's numbers; visible: {', '.join(map(str, visible)) or 'none'}"],
        )
