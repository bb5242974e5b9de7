"""Plants a slow-down: every decode step of an SGLang scheduler waits for TOKGATE_DELAY_MS milliseconds.

Put this folder in front of ``pythonpath`` in an engine file and set the variable under ``env``::

    pythonpath: [ci/delay, ...]
    env: {TOKGATE_DELAY_MS: "0.3"}

Python imports a module of this name at the start of every process, so the scheduler finds it wherever it is
spawned. It touches nothing but ``Scheduler.run_batch``, and says in the log that it is there.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

TARGET = "sglang.srt.managers.scheduler"
DELAY_MS = float(os.environ.get("TOKGATE_DELAY_MS", "0"))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the scheduler's module as usual and has it changed once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != TARGET:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _delay(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _delay(module: ModuleType) -> None:
    scheduler: Any = module.Scheduler
    run_batch = scheduler.run_batch

    def slow(self: Any, batch: Any, *arguments: Any, **named: Any) -> Any:
        if batch.forward_mode.is_decode():
            # Not sleep: its shortest is longer than what is to be planted.
            until = time.perf_counter() + DELAY_MS / 1e3
            while time.perf_counter() < until:
                pass
        return run_batch(self, batch, *arguments, **named)

    scheduler.run_batch = slow
    print(f"tokgate: planted a delay of {DELAY_MS:g} ms in every decode step", file=sys.stderr, flush=True)


if DELAY_MS > 0:
    sys.meta_path.insert(0, _Finder())
