"""Versions of the libraries that a worker has really loaded, from its memory map: not what was installed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokgate.host import proc
from tokgate.host.proc import Process

# Name -> what its shared object is called, and what its distribution's metadata is called.
LOADED: Mapping[str, tuple[re.Pattern[str], str]] = {
    "torch": (re.compile(r"/torch/lib/libtorch_cpu\.so"), "torch"),
    "NCCL": (re.compile(r"/libnccl\.so[.\d]*$"), "nvidia_nccl_cu*"),
    "CUDA runtime": (re.compile(r"/libcudart[-\w]*\.so[.\d]*$"), "nvidia_cuda_runtime*"),
    "sgl-kernel": (re.compile(r"/sgl_kernel/.*\.so$"), "sgl*kernel"),
    "triton": (re.compile(r"/triton/_C/libtriton\.so"), "triton"),
}
_VERSION = re.compile(r"-(\d[^-]*)\.dist-info$")
_SONAME = re.compile(r"\.so\.(\d[\d.]*)$")


def libraries(members: Sequence[Process]) -> dict[str, dict[str, str]]:
    """What every process that may be read has loaded.

    Returns:
        ``title (pid)`` -> library -> version; one whose version is not to be found is given by its file.
        A process that loaded none of them is left out.
    """
    versions: dict[str, str] = {}
    found: dict[str, dict[str, str]] = {}
    for process in members:
        own: dict[str, str] = {}
        for file in _mapped(process.pid):
            for name, (pattern, distribution) in LOADED.items():
                if name not in own and pattern.search(file):
                    if file not in versions:
                        versions[file] = version_of(Path(file), distribution)
                    own[name] = versions[file]
        if own:
            found[f"{proc.title(process)} ({process.pid})"] = {
                name: own[name] for name in LOADED if name in own
            }
    return found


def version_of(file: Path, distribution: str) -> str:
    """Version of the distribution that a shared object belongs to, else the file's own, else its path."""
    for folder in list(file.parents)[:6]:
        for metadata in sorted(folder.glob(f"{distribution}-*.dist-info")):
            if match := _VERSION.search(metadata.name):
                return match[1]
    try:
        real = file.resolve(strict=True)
    except OSError:
        real = file
    match = _SONAME.search(real.name)
    return match[1] if match else str(file)


def _mapped(pid: int) -> list[str]:
    text = proc.text(pid, "maps") or ""
    return list(dict.fromkeys(line[line.index("/") :] for line in text.splitlines() if "/" in line))
