"""``/start_profile``: what to ask of a version of SGLang, and which files it writes.

Read from the wheels: since 0.5.5 the request has ``output_dir``, ``num_steps``, ``activities``, ``with_stack`` and
``record_shapes``; profiling ends by itself after ``num_steps`` forward passes of the scheduler, prefills included, and
each rank writes ``<id>-TP-<n>[-DP-<n>][-PP-<n>][-EP-<n>].trace.json.gz``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokgate.config.engine import EngineKind
from tokgate.sglang.trace_spans import SPANS_SINCE
from tokgate.sglang.version import rules_for

START, STOP = "/start_profile", "/stop_profile"
_FILE = re.compile(r"-TP-(\d+)(?:-[A-Z]+-\d+)*(?:-[A-Za-z]+)?\.trace\.json\.gz$")


def request(folder: Path, *, steps: int, version: str, kind: EngineKind) -> Mapping[str, Any]:
    """The body for :data:`START`.

    Python frames slow the CPU several times over, so they are asked for only where nothing else
    tells a step's parts.

    Args:
        folder: where the ranks write; absolute, on the server's disk.
        steps: forward passes to record.
        version: of SGLang.
        kind: of the engine; one without a GPU records the CPU alone.
    """
    return {
        "output_dir": str(folder.resolve()),
        "num_steps": steps,
        "activities": ["CPU"] if kind == "cpu" else ["CPU", "GPU"],
        "with_stack": not rules_for(version).since(SPANS_SINCE),
        "record_shapes": False,
    }


def trace_files(folder: Path) -> list[Path]:
    """Traces in a folder, by tensor-parallel rank."""
    found = [(int(match[1]), path) for path in folder.glob("*.gz") if (match := _FILE.search(path.name))]
    return [path for _, path in sorted(found)]
