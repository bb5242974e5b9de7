"""The class of a host: the name under which its baselines are stored."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from tokgate.host import proc


def host_class(kind: str, gpu_names: Sequence[str] = (), scenario: str | None = None) -> str:
    """Name under which baselines of a host are stored.

    Args:
        kind: ``gpu``, ``cpu`` or ``emulated``.
        gpu_names: NVML names of the GPUs that the engine uses.
        scenario: of the emulated engine.

    Returns:
        ``nvidia-h200``, ``nvidia-h200-x8``, ``cpu-<model>-<cores>c`` or ``emulated-<scenario>``.
    """
    if kind == "emulated":
        return f"emulated-{_slug(scenario or 'founding')}"
    if kind == "cpu":
        return f"cpu-{_slug(cpu_model())}-{os.cpu_count() or 0}c"
    names = sorted({_slug(name) for name in gpu_names})
    if not names:
        return "gpu-unknown"
    return "+".join(names) + (f"-x{len(gpu_names)}" if len(gpu_names) > 1 else "")


def cpu_model() -> str:
    """Model name of the CPU, as /proc/cpuinfo gives it."""
    try:
        info = (proc.PROC / "cpuinfo").read_text()
    except OSError:
        return "unknown"
    match = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", info, re.MULTILINE)
    return match[1].strip() if match else "unknown"


def _slug(text: str) -> str:
    plain = re.sub(r"\((?:r|tm)\)|\bcpu\b|@.*$|processor", " ", text.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
