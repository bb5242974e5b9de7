"""Plants a slow-down: every decode step of an SGLang scheduler takes TOKGATE_DELAY_MS milliseconds longer.

Put this folder in front of ``pythonpath`` in an engine file and set the variables under ``env``::

    pythonpath: [ci/delay, ...]
    env: {TOKGATE_DELAY_MS: "0.3", TOKGATE_DELAY_ON: gpu}

``TOKGATE_DELAY_ON``: ``cpu`` (default) busies the scheduler before each decode step; SGLang launches a step while the
GPU works on the one before, so a delay below the GPU's own time is hidden where a large model keeps the GPU busy.
``gpu`` busies the stream of the forward passes, where nothing hides it.

Python imports a module of this name at the start of every process, so the scheduler finds it wherever it is
spawned. It touches nothing but ``Scheduler.run_batch``, and says in the log that it is there.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

TARGET = "sglang.srt.managers.scheduler"
DELAY_MS = float(os.environ.get("TOKGATE_DELAY_MS", "0"))
ON = os.environ.get("TOKGATE_DELAY_ON", "cpu")
TRIAL_CYCLES = 20_000_000
"""About 10 ms: long enough for a GPU to leave its idle clock."""


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
        _delay(module.Scheduler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _delay(scheduler: Any) -> None:
    run_batch = scheduler.run_batch
    wait: Callable[[Any], None] = _on_gpu() if ON == "gpu" else _on_cpu

    def slow(self: Any, batch: Any, *arguments: Any, **named: Any) -> Any:
        if batch.forward_mode.is_decode():
            wait(self)
        return run_batch(self, batch, *arguments, **named)

    scheduler.run_batch = slow
    if ON != "gpu":
        _say(f"planted a delay of {DELAY_MS:g} ms in every decode step")


def _on_cpu(_: Any) -> None:
    # Not sleep: its shortest is longer than what is to be planted.
    until = time.perf_counter() + DELAY_MS / 1e3
    while time.perf_counter() < until:
        pass


def _on_gpu() -> Callable[[Any], None]:
    """A wait on the stream of the forward passes; how long a GPU's cycle takes is measured at the first step."""
    cycles: list[int] = []

    def wait(scheduler: Any) -> None:
        import torch

        cuda: Any = torch.cuda
        with cuda.stream(scheduler.forward_stream):
            if not cycles:
                a_ms = _cycles_a_ms(cuda)
                cycles.append(round(DELAY_MS * a_ms))
                _say(
                    f"planted a delay of {DELAY_MS:g} ms on the GPU in every decode step ({a_ms / 1e3:.0f} MHz)"
                )
            cuda._sleep(cycles[0])

    return wait


def _cycles_a_ms(cuda: Any) -> float:
    taken_ms = 0.0
    for _ in range(2):  # the first raises the clock
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        cuda._sleep(TRIAL_CYCLES)
        end.record()
        end.synchronize()
        taken_ms = begin.elapsed_time(end)
    return TRIAL_CYCLES / taken_ms


def _say(line: str) -> None:
    print(f"tokgate: {line}", file=sys.stderr, flush=True)


if DELAY_MS > 0:
    if ON not in ("cpu", "gpu"):
        sys.exit(f"tokgate: TOKGATE_DELAY_ON is cpu or gpu, not '{ON}'")
    sys.meta_path.insert(0, _Finder())
