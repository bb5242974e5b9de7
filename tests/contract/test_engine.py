"""The real CPU engine: the contract live, greedy parity, accept length, speed-up, a kill and a suspension.

Two launches on the `small` pair, one after another, so that two cores and 3 GB suffice. What is measured is
judged afterwards by one test each. Takes about 3 minutes on a quiet machine.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.contract.checks import CHECKS
from tests.contract.launches import BASELINE, EAGLE3, STEPS, launch_spec, pair
from tests.contract.transcript import NEW_TOKENS, PROMPT, Transcript, generate, prompt, take
from tests.environments.engines import cpu_engine
from tokgate.config.engine import Engine
from tokgate.config.profiles import Profile
from tokgate.errors import Exited, Hang
from tokgate.models.truth import Truth, predicted_output, predicted_verify_count
from tokgate.server.launch import start
from tokgate.server.running import Server
from tokgate.sglang.http import read_generation

pytestmark = [pytest.mark.cpu, pytest.mark.timeout(1500)]

PRESET, ACCEPT_LENGTH = "small", 3.0
# One longer than the pair's relay distance (where the dial holds), one shorter.
PROMPTS = (prompt(96, 3), prompt(20, 4), prompt(96, 5))
TOKENS = 96
# A scheduler that got this share of a core had the machine to itself, and its wall time means something.
UNDISTURBED = 0.9
SILENCE_S = 6.0


@dataclass(frozen=True, slots=True)
class Run:
    """What one launch gave.

    Attributes:
        outputs, verify_counts: of each of ``PROMPTS``.
        wall_s, cpu_s: of the requests; CPU time is the scheduler's, which other load does not change.
        fault: what tokgate said when the scheduler was killed or suspended at the end.
        left: processes of the launch that still lived after that.
    """

    transcript: Transcript
    outputs: list[list[int]]
    verify_counts: list[int | None]
    wall_s: float
    cpu_s: float
    fault: Exited | Hang
    left: Sequence[object]

    @property
    def tokens(self) -> int:
        return len(PROMPTS) * TOKENS


@dataclass(frozen=True, slots=True)
class Session:
    truth: Truth
    baseline: Run
    eagle3: Run


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    engine = cpu_engine()
    folder = tmp_path_factory.mktemp("cpu")
    truth = pair(PRESET, folder / PRESET, ACCEPT_LENGTH)
    return Session(truth, run(engine, BASELINE, folder), run(engine, EAGLE3, folder))


def run(engine: Engine, profile: Profile, folder: Path) -> Run:
    """One launch from start to end: questions, measured requests, then the fault."""
    with start(launch_spec(engine, profile, folder / PRESET, folder)) as server:
        transcript = take(server, PRESET, ACCEPT_LENGTH)
        generate(server, prompt(96, 6), TOKENS)  # warm
        cpu = scheduler(server).cpu_times()
        began = time.perf_counter()
        answers = [generate(server, ids, TOKENS) for ids in PROMPTS]
        wall_s = time.perf_counter() - began
        used = scheduler(server).cpu_times()
        fault = killed(server) if profile is BASELINE else suspended(server)
        left = server.processes()
    return Run(
        transcript,
        [answer["output_ids"] for answer in answers],
        [read_generation(answer["meta_info"]).verify_count for answer in answers],
        wall_s,
        used.user + used.system - cpu.user - cpu.system,
        fault,
        left,
    )


def scheduler(server: Server) -> psutil.Process:
    (found,) = (
        process
        for process in map(psutil.Process, (item.pid for item in server.processes()))
        if process.cmdline()[:1] and process.cmdline()[0].startswith("sglang::scheduler")
    )
    return found


def killed(server: Server) -> Exited:
    """Kill the scheduler under a request."""
    with pytest.raises(Exited) as caught, server.watch("generation"):
        os.kill(scheduler(server).pid, signal.SIGKILL)
        generate(server, PROMPT, NEW_TOKENS)
    return caught.value


def suspended(server: Server) -> Hang:
    """Suspend the scheduler: no process dies, nothing is logged, no token comes."""
    os.kill(scheduler(server).pid, signal.SIGSTOP)
    time.sleep(SILENCE_S)
    server.ensure_alive("generation")
    fault = server.hang("generation", waited_s=SILENCE_S, limit_s=SILENCE_S)
    assert isinstance(fault, Hang), fault
    return fault


@pytest.mark.parametrize("profile", ["baseline", "eagle3"])
@pytest.mark.parametrize("check", CHECKS)
def test_contract(session: Session, check: str, profile: str) -> None:
    """See the claim of that name in checks.py."""
    CHECKS[check](getattr(session, profile).transcript)


def test_greedy_output_is_equal_with_and_without_speculation(session: Session) -> None:
    assert session.eagle3.outputs == session.baseline.outputs


def test_greedy_output_is_the_predicted_one(session: Session) -> None:
    assert session.baseline.outputs == [predicted_output(session.truth, ids, TOKENS) for ids in PROMPTS]


def test_accept_length_is_the_predicted_one(session: Session) -> None:
    """To the verify pass, not just on average."""
    counts = [predicted_verify_count(session.truth, ids, TOKENS, STEPS) for ids in PROMPTS]
    assert session.eagle3.verify_counts == counts
    assert session.baseline.verify_counts == [None] * len(PROMPTS)


def test_eagle3_is_faster_than_baseline(session: Session) -> None:
    """Less scheduler time a token; and less wall time, where nothing else had the cores."""
    runs = (session.baseline, session.eagle3)
    cpu_ms = [item.cpu_s / item.tokens * 1e3 for item in runs]
    wall_ms = [item.wall_s / item.tokens * 1e3 for item in runs]
    share = [item.cpu_s / item.wall_s for item in runs]
    text = (
        f"EAGLE-3 {wall_ms[0] / wall_ms[1]:.2f}x by wall time ({wall_ms[0]:.1f} -> {wall_ms[1]:.1f} ms), "
        f"{cpu_ms[0] / cpu_ms[1]:.2f}x by scheduler time ({cpu_ms[0]:.1f} -> {cpu_ms[1]:.1f} ms) a token; "
        f"share of a core: {share[0]:.2f}, {share[1]:.2f}"
    )
    print(text)
    assert cpu_ms[1] < cpu_ms[0], text
    if min(share) >= UNDISTURBED:
        assert wall_ms[1] < wall_ms[0], text


def test_killed_scheduler_is_told(session: Session) -> None:
    fault = session.baseline.fault
    assert isinstance(fault, Exited)
    assert "scheduler" in str(fault)
    assert session.baseline.left == []


def test_suspended_scheduler_is_told(session: Session) -> None:
    fault = session.eagle3.fault
    assert isinstance(fault, Hang)
    assert (fault.waited_s, fault.limit_s) == (SILENCE_S, SILENCE_S)
    assert "sglang::scheduler" in str(fault) or "stopped" in str(fault)
    assert all(path.exists() for path in fault.files)
    assert session.eagle3.left == []
