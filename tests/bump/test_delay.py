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


def run(tmp_path: Path, delay_ms: str | None) -> subprocess.CompletedProcess[str]:
    managers = tmp_path / "sglang" / "srt" / "managers"
    managers.mkdir(parents=True)
    (managers / "scheduler.py").write_text(SCHEDULER)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(DELAY), str(tmp_path)])}
    if delay_ms is not None:
        env["TOKGATE_DELAY_MS"] = delay_ms
    return subprocess.run(
        [sys.executable, "-c", TRIAL], capture_output=True, text=True, env=env, check=False, timeout=60
    )


def test_every_decode_step_waits_and_no_other(tmp_path: Path) -> None:
    done = run(tmp_path, "20")
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert "planted a delay of 20 ms" in done.stderr


def test_without_the_variable_nothing_is_touched(tmp_path: Path) -> None:
    done = run(tmp_path, None)
    assert done.stdout.split() == ["False", "True"], done.stderr
    assert "planted" not in done.stderr
