"""Golden messages of verdicts, and runs of the gate that several tests look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gate.runs import Finished, gate
from tests.golden import compare
from tokgate.verdict import Verdict

MESSAGES = Path(__file__).parents[1] / "messages" / "gate"
SCENARIO = Path(__file__).with_name("other.yaml")
STEADY = ("--engine=emulated:steady", "--workloads=chat-bs1", "--runs=2")
# Figures of time vary, and so does what the host adds.
_NORMAL: tuple[tuple[str, str], ...] = (
    (r"^  (\d+ of \d+ runs under contention|\d+ void runs? repeated).*\n", ""),
    (r"^  file: .*/samples/([^/]+/[^/]+)/.*", r"  file: samples/\1/RUN"),
    (r"[-+]?\d+(\.\d+)?\.\.[-+]?\d+(\.\d+)?", "N..N"),
    (r"\d[\d.]* vs \d[\d.]* tok/s", "N vs N tok/s"),
    (r"[-+]\d+\.\d %", "N %"),
    # Where the loss that the noise hides happens to be large.
    (r", beyond the limit -3 %", ""),
    (r"smallest detectable [\d.]+ %", "smallest detectable N %"),
    (r"(\bruns: |in this run: )\d[\d., ]*\d", r"\1N, ..."),
    (r"(\d+ of )?\d+ decode passes", r"N decode passes"),
)


@pytest.fixture
def golden() -> Callable[[str, Verdict], None]:
    """Compares a verdict's message with the recorded one, figures normalised."""
    return lambda name, verdict: compare(MESSAGES / f"{name}.txt", verdict.text() + "\n", _NORMAL)


@pytest.fixture(scope="session")
def well(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """All five profiles without a fault."""
    return gate(
        tmp_path_factory.mktemp("well"),
        *STEADY,
        # Of two runs a side one slow one hides that graphs pay.
        "--runs=5",
        "--profiles=baseline-eager,eagle3-graphs,eagle3-eager,eagle3-attn-decode",
        "-k=test_replay or on_off or test_attention_mode",
    )


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """An engine that is slower with graphs, accepts less without them, and is slower in mode decode."""
    return gate(
        tmp_path_factory.mktemp("other"),
        f"--engine=emulated:{SCENARIO}",
        "--workloads=chat-bs1",
        "--runs=3",
        "--profiles=baseline-eager,eagle3-graphs,eagle3-eager,eagle3-attn-decode",
        "-k=on_off or test_attention_mode",
    )


@pytest.fixture(scope="session")
def split(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Different backends for prefill and decode, and graphs for batches of four at most."""
    return gate(
        tmp_path_factory.mktemp("split"),
        "--engine=emulated:steady",
        "--workloads=chat-bs8",
        "--runs=2",
        "--profiles=eagle3-graphs,eagle3-attn-decode",
        "--engine-flag=--prefill-attention-backend=flashinfer",
        "--engine-flag=--decode-attention-backend=triton",
        "--engine-flag=--cuda-graph-max-bs-decode=4",
        "-k=test_replay and eagle3-graphs or test_attention_mode",
    )
