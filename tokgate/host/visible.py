"""Which GPUs CUDA shows to an engine: what its environment selects, by NVML's indices."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tokgate.host.gpu import Nvml

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER, BY_BUS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"


def visible_indices(nvml: Nvml, env: Mapping[str, str], count: int) -> list[int]:
    """NVML indices of the GPUs that an engine with that environment uses.

    Args:
        env: its CUDA_VISIBLE_DEVICES (numbers or UUIDs) selects; absent: all.
        count: how many GPUs the engine uses (tensor parallel size).
    """
    return _selected(nvml, env)[0][:count]


def why_no_more(nvml: Nvml, env: Mapping[str, str]) -> str:
    """Why an engine with that environment sees no more GPUs than it does, in a sentence."""
    wanted = _given(env, VISIBLE)
    here = len(nvml.permitted())
    if wanted is None:
        return f"this host shows {here}; tokgate doctor tells more"
    stop = _selected(nvml, env)[1]
    said = f"{VISIBLE}={wanted}{_giver(env)}"
    if not wanted.strip():
        return f"{said}: it is empty, which hides every GPU"
    if stop is None:
        return f"{said} names no more; this host shows {here}"
    if stop.startswith("MIG-"):
        return f"{said}: {stop} is a part of a GPU; tokgate locks and watches whole ones: turn MIG off, or name another"
    return f"{said}: no GPU here is '{stop}', and CUDA reads no further"


def numbered_otherwise(nvml: Nvml, env: Mapping[str, str]) -> str | None:
    """Why the numbers that CUDA gives to GPUs may not be NVML's, in a sentence; ``None`` where they are.

    CUDA counts the quickest first unless it is told otherwise: on a host with unlike GPUs the one that is locked,
    watched and named in results would be another than the one that computes.
    """
    if _given(env, ORDER) == BY_BUS:
        return None
    wanted = _given(env, VISIBLE)
    if wanted is not None and not any(part.strip().isdigit() for part in wanted.split(",")):
        return None
    names = nvml.names([index for index in nvml.permitted() if nvml.silence(index) is None])
    if len(set(names)) < 2:
        return None
    return f"this host has unlike GPUs ({', '.join(names)}), which CUDA and the driver may number differently"


def _selected(nvml: Nvml, env: Mapping[str, str]) -> tuple[list[int], str | None]:
    """The GPUs, and the item that ends the list before its end: CUDA reads no further than one that it cannot use."""
    wanted = _given(env, VISIBLE)
    places = nvml.permitted()
    if wanted is None:
        return places, None
    uuids = nvml.uuids()
    found: list[int] = []
    for item in (part.strip() for part in wanted.split(",")):
        index = _index(item, places, uuids)
        if index is None or index in found:
            return found, item
        found.append(index)
    return found, None


def _index(item: str, places: Sequence[int], uuids: Sequence[str]) -> int | None:
    if item.isdigit():
        return places[int(item)] if int(item) < len(places) else None
    alike = [index for index in places if item and uuids[index].startswith(item)]
    return alike[0] if len(alike) == 1 else None


def _given(env: Mapping[str, str], name: str) -> str | None:
    return env.get(name, os.environ.get(name))


def _giver(env: Mapping[str, str]) -> str:
    return " (of the engine)" if VISIBLE in env else ""
