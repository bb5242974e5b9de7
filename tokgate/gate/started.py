"""Started: one launch that became ready, and what its start showed of the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokgate.load.sample import Sample
from tokgate.server.timeline import Capture
from tokgate.server.truth import Variable


@dataclass(frozen=True, slots=True)
class Started:
    """One launch that became ready.

    Attributes:
        sample: seconds of each phase.
        file: where it is stored.
        captures: graph captures by kind and rank.
        odd_captures: ranks that differ from the others, in words.
        overrides: where the server runs with something else than was asked, in words.
        environments: what each worker process really has, by its title.
        variables: the same by variable, with who gave it.
        libraries: versions that each process has loaded, by its title.
        nccl_version: ``None`` when the log does not give it.
        ranks: tensor-parallel size that was asked for.
    """

    sample: Sample
    file: Path
    captures: tuple[Capture, ...] = ()
    odd_captures: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    variables: tuple[Variable, ...] = ()
    libraries: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    nccl_version: str | None = None
    ranks: int = 1
