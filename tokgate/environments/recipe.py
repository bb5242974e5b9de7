"""What tokgate can make: one recipe per environment name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tokgate.environments.lock import Lock

PACKAGE = Path(__file__).resolve().parent
LOCKS = PACKAGE / "locks"
KERNELS = PACKAGE / "cpu_kernels"
LAUNCHER = "launch_server.py"

# One OpenMP thread: the synthetic pairs are so small that threads cost more than they give. Without the
# user's own site-packages, what the lock pins is what runs.
CPU_ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONNOUSERSITE": "1",
    }
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One environment.

    Attributes:
        name: as in ``tokgate env make NAME`` and ``--engine NAME``.
        version: of SGLang.
        lock_file: its lock.
        stand_in: whether it gets the stand-in kernels; speculation needs them.
        modules: imported to verify the environment.
        disk_bytes: space it takes, measured, rounded up.
        summary: one line for `tokgate env list`.
    """

    name: str
    version: str
    lock_file: Path
    stand_in: bool
    modules: tuple[str, ...]
    disk_bytes: int
    summary: str

    @property
    def lock(self) -> Lock:
        """The lock, parsed."""
        return Lock.parse(self.lock_file.read_text(encoding="utf-8"))

    def sources(self) -> tuple[Path, ...]:
        """Files of tokgate's own that the engine runs, relative to :data:`KERNELS`."""
        stand_in = sorted((KERNELS / "sgl_kernel").glob("*.py")) if self.stand_in else []
        return tuple(path.relative_to(KERNELS) for path in [KERNELS / LAUNCHER, *stand_in])

    @property
    def sources_digest(self) -> str:
        """SHA-256 over names and contents of :meth:`sources`."""
        total = hashlib.sha256()
        for path in self.sources():
            content = (KERNELS / path).read_bytes()
            total.update(f"{path.as_posix()} {len(content)}\n".encode() + content)
        return total.hexdigest()

    @property
    def digest(self) -> str:
        """Identity of the engine: the lock and the files of tokgate's own that run in it."""
        return hashlib.sha256(f"{self.lock.digest} {self.sources_digest}".encode()).hexdigest()


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe(
                name="cpu",
                version="0.5.23",
                lock_file=LOCKS / "cpu-0.5.23.txt",
                stand_in=True,
                modules=(
                    "sgl_kernel",
                    "sglang.srt.entrypoints.http_server",
                    "sglang.srt.models.llama_eagle3",
                ),
                disk_bytes=2_900_000_000,
                summary="SGLang 0.5.23 on CPU, with EAGLE-3",
            ),
            Recipe(
                name="cpu-0.5.15.post1",
                version="0.5.15.post1",
                lock_file=LOCKS / "cpu-0.5.15.post1.txt",
                stand_in=False,
                modules=("sglang.srt.entrypoints.http_server", "sglang.srt.models.llama"),
                disk_bytes=2_900_000_000,
                summary="SGLang 0.5.15.post1 on CPU, without speculation",
            ),
        )
    }
)
