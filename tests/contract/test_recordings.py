"""The recordings of real engines satisfy the contract: `tokgate.sglang` reads them as it must."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.contract.checks import CHECKS
from tests.contract.record import RECORDINGS, recorded
from tests.contract.transcript import Transcript


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("check", CHECKS)
def test_recording(name: str, check: str) -> None:
    """See the claim of that name in checks.py."""
    CHECKS[check](recorded(name))


@pytest.mark.parametrize("name", RECORDINGS)
def test_recording_holds_no_path_of_the_machine(name: str) -> None:
    transcript: Transcript = recorded(name)
    for text in (
        transcript.log.decode(),
        str(transcript.server_info),
        str(transcript.model_info),
        transcript.after,
    ):
        assert not re.search(r"/(home|root|tmp)/", text)


FATAL = b"[2026-11-29 11:45:28] Scheduler hit an exception: Traceback (most recent call last):\nValueError\n"
STATES, VERIFIES = "internal_states", b"spec_verify_ct"
GOOD = "cpu-0.5.23/eagle3"
# Claim -> a change that SGLang has made or could make, which must break it.
BREAKS: dict[str, Callable[[Transcript], dict[str, Any]]] = {
    "speculation_is_counted": lambda t: {"generated": rename(t.generated, "spec_verify_ct")},
    "server_info_tells_capacity_and_memory": lambda t: {"server_info": rename(t.server_info, STATES)},
    "server_info_names_the_version": lambda t: {"server_info": rename(t.server_info, "version")},
    "server_runs_as_asked": lambda t: {"server_info": {**t.server_info, "speculative_num_steps": 5}},
    "metrics_count_verify_passes": lambda t: {"after": t.after.replace("spec_verify_calls", "spec_verifies")},
    "metrics_count_tokens": lambda t: {"after": t.after.replace("generation_tokens_total", "output_tokens")},
    "log_shows_decode_batches": lambda t: {"log": t.log.replace(b"accept len:", b"accept length:")},
    "log_shows_the_start_in_order": lambda t: {"log": t.log.replace(b"fired up and ready", b"up and ready")},
    "log_of_a_healthy_server_raises_no_suspicion": lambda t: {"log": t.log + FATAL},
    "stream_is_cumulative": lambda t: {"streamed": t.streamed.replace(b'"text":" w', b'"text":"x', 1)},
    "stream_ends_with_the_figures": lambda t: {"streamed": t.streamed.replace(VERIFIES, b"verifies")},
}


@pytest.mark.parametrize("check", BREAKS)
def test_a_changed_answer_breaks_the_contract(check: str) -> None:
    good = recorded(GOOD)
    CHECKS[check](good)
    with pytest.raises((AssertionError, KeyError, StopIteration)):
        CHECKS[check](replace(good, **BREAKS[check](good)))


def test_a_step_an_event_is_told_from_two_and_a_late_front_process_is_neither() -> None:
    """Of a baseline's stream: every second event left out, as an interval of two would, and one in the middle."""
    good = recorded("cpu-0.5.23/baseline")
    events = re.findall(rb"data: .*?\n\n", good.streamed, re.DOTALL)
    assert b"".join(events) == good.streamed and len(events) > 20
    middle = len(events) // 2
    late = b"".join(events[:middle] + events[middle + 1 :])
    CHECKS["stream_is_cumulative"](replace(good, streamed=late))
    # The first token comes with the prefill; the last two events end the stream.
    by_two = b"".join([events[0], *events[2:-2:2], *events[-2:]])
    with pytest.raises(AssertionError):
        CHECKS["stream_is_cumulative"](replace(good, streamed=by_two))


def rename(answer: Any, key: str) -> Any:
    """The same answer with one key, at any depth, under another name."""
    if isinstance(answer, dict):
        return {f"{name}_2" if name == key else name: rename(value, key) for name, value in answer.items()}
    return answer
