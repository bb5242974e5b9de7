"""Memory bandwidth of the device that an engine computes on: a copy inside its memory, in its own Python."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass

from tokgate.config.engine import Engine

_LONGEST_S = 180.0
# Best of several repetitions: what slows one of them is no property of the memory.
_COPY = """
import json, sys, time, torch
device, size, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
source = torch.ones(size // 4, dtype=torch.float32, device=device)
target = torch.empty_like(source)
best = 0.0
for _ in range(rounds):
    if device == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(10):
            target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        seconds = begin.elapsed_time(end) / 1e3
    else:
        began = time.perf_counter()
        for _ in range(10):
            target.copy_(source)
        seconds = time.perf_counter() - began
    best = max(best, 10 * 2 * size / seconds)
print(json.dumps({"bytes_s": best}))
"""
_SIZE = {"cuda": 1 << 30, "cpu": 1 << 27}


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """What a copy reached.

    Attributes:
        bytes_s: read and written, bytes a second; ``None`` when it could not be measured.
        why: then, why not.
    """

    bytes_s: float | None
    why: str = ""


def measure_bandwidth(engine: Engine) -> Bandwidth:
    """Copy within the device's memory; takes 2 GiB of it for a moment, and some seconds to import torch."""
    if engine.kind == "emulated":
        return Bandwidth(None, "the emulated engine has no memory of its own")
    device = "cuda" if engine.kind == "gpu" else "cpu"
    env = {**os.environ, **engine.env}
    if engine.pythonpath:
        env["PYTHONPATH"] = os.pathsep.join(engine.pythonpath)
    try:
        done = subprocess.run(
            [engine.python, "-c", _COPY, device, str(_SIZE[device]), "5"],
            env=env,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
        )
        return Bandwidth(float(json.loads(done.stdout.strip().splitlines()[-1])["bytes_s"]))
    except subprocess.TimeoutExpired:
        return Bandwidth(None, f"the copy took longer than {_LONGEST_S:g} s")
    except OSError as error:
        return Bandwidth(None, f"{engine.python} cannot be run: {error.strerror}")
    except (IndexError, ValueError, KeyError, TypeError):
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        return Bandwidth(None, f"the copy failed: {last[:200]}")
