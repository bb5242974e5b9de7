"""Real SGLang with two ranks on the CPU: what each rank has, that its output is right, and one rank suspended.

One launch; about a minute on a quiet machine. There are neither graphs nor NCCL on the CPU: what is read of
those is shown on GPUs (``benchmarks.tensor_parallel``).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.launches import EAGLE3, STEPS, launch_spec, pair
from tests.contract.transcript import generate, prompt
from tests.environments.engines import cpu_engine
from tokgate.errors import Hang
from tokgate.host import proc
from tokgate.models.truth import predicted_output, predicted_verify_count
from tokgate.server.launch import start
from tokgate.server.running import Server
from tokgate.sglang.http import read_generation

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(1500)]

SHELL = {"NCCL_DEBUG": "WARN", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
TOKENS = 48
SILENCE_S = 6.0


def test_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    truth = pair("small", tmp_path / "pair", 3.0)
    profile = replace(EAGLE3, tp=2, env={"NCCL_PROTO": "LL"})
    with start(launch_spec(cpu_engine(), profile, tmp_path / "pair", tmp_path)) as server:
        check_truth(server)
        ids = prompt(96, 3)
        answer = generate(server, ids, TOKENS)
        assert answer["output_ids"] == predicted_output(truth, ids, TOKENS)
        counted = read_generation(answer["meta_info"]).verify_count
        assert counted == predicted_verify_count(truth, ids, TOKENS, STEPS)
        fault = suspended(server, ids)
        left = server.processes()
    details = "\n".join(fault.details)
    assert "likely cause: stopped by a signal: pid" in details and "(sglang::scheduler_TP1)" in details
    for rank in (0, 1):
        assert f"sglang::scheduler_TP{rank}: " in details.partition("stack of")[2], details
    assert left == []


def check_truth(server: Server) -> None:
    """Both ranks: who gave them what, and which torch they loaded."""
    ranks = [name for name in server.libraries if name.startswith("sglang::scheduler_TP")]
    assert [name.partition(" (")[0][-3:] for name in sorted(ranks)] == ["TP0", "TP1"]
    assert len({server.libraries[name]["torch"] for name in ranks}) == 1
    told = {str(item) for item in server.variables if not item.workers}
    assert told >= {
        "NCCL_DEBUG=WARN (shell)",
        "NCCL_PROTO=LL (profile)",
        "NCCL_CUMEM_ENABLE=0 (SGLang)",
        "CUDA_DEVICE_MAX_CONNECTIONS=8 (SGLang; shell said 1)",
    }
    assert server.odd_captures == [] and server.captures == ()


def suspended(server: Server, ids: list[int]) -> Hang:
    """Suspend one rank under a request: the other one waits for it."""
    (victim,) = (p for p in server.processes() if proc.title(p) == "sglang::scheduler_TP1")
    os.kill(victim.pid, signal.SIGSTOP)
    asked = threading.Thread(target=_ask, args=(server, ids), daemon=True)
    asked.start()
    time.sleep(SILENCE_S)
    assert asked.is_alive(), "with one rank suspended no answer can come"
    server.ensure_alive("decode")
    fault = server.hang("decode", waited_s=SILENCE_S, limit_s=SILENCE_S)
    assert isinstance(fault, Hang), fault
    return fault


def _ask(server: Server, ids: list[int]) -> None:
    try:
        generate(server, ids, TOKENS)
    except OSError:
        # The server is ended under it.
        return
