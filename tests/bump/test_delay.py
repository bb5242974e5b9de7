"""The planted slow-down: it delays decode steps of a scheduler, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DELAY = Path(__file__).parents[2] / "ci" / "delay"
SCHEDULER = """
class Scheduler:
    def run_batch(self, batch, extra=None):
        return (batch, extra)
"""
TRIAL = """
import time
from sglang.srt.managers.scheduler import Scheduler
class Mode:
    def __init__(self, decode): self.decode = decode
    def is_decode(self): return self.decode
class Batch:
    def __init__(self, decode): self.forward_mode = Mode(decode)
def timed(decode):
    batch, began = Batch(decode), time.perf_counter()
    assert Scheduler().run_batch(batch, extra=7) == (batch, 7)
    return time.perf_counter() - began
print(min(timed(True) for _ in range(5)) > 0.02, min(timed(False) for _ in range(5)) < 0.02)
"""


TORCH = """
class Event:
    clock_ms = 0.0
    def __init__(self, enable_timing): self.at = None
    def record(self): self.at = Event.clock_ms
    def synchronize(self): pass
    def elapsed_time(self, other): return other.at - self.at
class cuda:
    Event = Event
    slept, streams = [], []
    class stream:
        def __init__(self, stream): cuda.streams.append(stream)
        def __enter__(self): pass
        def __exit__(self, *_): pass
    def _sleep(cycles):
        Event.clock_ms += cycles / 2e6  # 2 GHz
        cuda.slept.append(cycles)
"""
ON_GPU = """
import torch
from sglang.srt.managers.scheduler import Scheduler
class Batch:
    class forward_mode:
        is_decode = staticmethod(lambda: True)
class Prefill:
    class forward_mode:
        is_decode = staticmethod(lambda: False)
scheduler = Scheduler()
scheduler.forward_stream = "forward"
for batch in (Prefill, Batch, Batch, Prefill, Batch):
    assert scheduler.run_batch(batch) == (batch, None)
print(*torch.cuda.slept, *set(torch.cuda.streams))
"""


def run(
    tmp_path: Path, delay_ms: str | None, on: str = "cpu", trial: str = TRIAL
) -> subprocess.CompletedProcess[str]:
    managers = tmp_path / "sglang" / "srt" / "managers"
    managers.mkdir(parents=True)
    (managers / "scheduler.py").write_text(SCHEDULER)
    (tmp_path / "torch.py").write_text(TORCH)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(DELAY), str(tmp_path)])}
    if delay_ms is not None:
        env |= {"TOKGATE_DELAY_MS": delay_ms, "TOKGATE_DELAY_ON": on}
    return subprocess.run(
        [sys.executable, "-c", trial], capture_output=True, text=True, env=env, check=False, timeout=60
    )


def test_every_decode_step_waits_and_no_other(tmp_path: Path) -> None:
    done = run(tmp_path, "20")
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert "planted a delay of 20 ms" in done.stderr


def test_without_the_variable_nothing_is_touched(tmp_path: Path) -> None:
    done = run(tmp_path, None)
    assert done.stdout.split() == ["False", "True"], done.stderr
    assert "planted" not in done.stderr


def test_on_the_gpu_every_decode_step_waits_on_the_stream_of_the_forward_passes(tmp_path: Path) -> None:
    """Two long waits tell the clock, 2 GHz here; then half a millisecond a decode step."""
    done = run(tmp_path, "0.5", "gpu", ON_GPU)
    *slept, stream = done.stdout.split()
    assert (slept, stream) == (["20000000"] * 2 + ["1000000"] * 3, "forward"), done.stderr
    assert done.stderr == "tokgate: planted a delay of 0.5 ms on the GPU in every decode step (2000 MHz)\n"


def test_a_place_that_there_is_not_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "1", "moon")
    assert "TOKGATE_DELAY_ON is cpu or gpu, not 'moon'" in done.stderr
    assert "planted" not in done.stderr
