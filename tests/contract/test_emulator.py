"""The emulated engine keeps to the same contract, and sends what the real one was recorded to send."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.checks import CHECKS, events, sse
from tests.contract.launches import PROFILES, launch_spec
from tests.contract.record import recorded
from tests.contract.transcript import Transcript, take
from tokgate.config.engine import emulated_engine
from tokgate.server.launch import start
from tokgate.sglang import log_events as ev
from tokgate.sglang import metrics
from tokgate.sglang.http import resolved
from tokgate.sglang.metrics import parse

pytestmark = pytest.mark.emulated

VERSION = "0.5.23"
# Kinds of log lines that depend on the machine or on what is being imported, not on the engine's behaviour.
INCIDENTAL = {ev.Benign, ev.Hint, ev.Progress, ev.DistributedBegin, ev.NcclVersion, ev.Suspect}

# What the emulated engine does not say yet and the real one does. Whoever closes a gap strikes it out here:
# the tests compare for equality.
MISSING_CLAIMS = {"metrics_count_retracted_requests"}
MISSING_ARGUMENTS = {"enable_two_batch_overlap"}
MISSING_METRICS = {
    "baseline": {"sglang:num_retracted_reqs", "sglang:spec_accept_length"},
    "eagle3": {"sglang:num_retracted_reqs"},
}
MISSING_EVENTS = {ev.StartupTimings}


@pytest.fixture(scope="module", params=PROFILES)
def spoken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transcript]:
    """A transcript of the emulated engine."""
    profile = PROFILES[request.param]
    engine = replace(emulated_engine(version=VERSION), pythonpath=(str(Path.cwd()),))
    folder = tmp_path_factory.mktemp("emulated")
    with start(launch_spec(engine, profile, folder, folder)) as server:
        yield take(server, "none", 0.0)


@pytest.fixture
def real(spoken: Transcript) -> Transcript:
    """What the real engine was recorded to say to the same questions."""
    return recorded(f"cpu-{VERSION}/{spoken.profile.name}")


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason="not said yet"))
        if name in MISSING_CLAIMS
        else name
        for name in CHECKS
    ],
)
def test_contract(spoken: Transcript, check: str) -> None:
    """See the claim of that name in checks.py."""
    CHECKS[check](spoken)


def keys(answer: Any) -> set[str]:
    """Names of the fields of an answer."""
    return set(answer)


def test_generation_has_the_real_fields(spoken: Transcript, real: Transcript) -> None:
    assert keys(spoken.generated) == keys(real.generated)
    assert keys(real.generated["meta_info"]) - keys(spoken.generated["meta_info"]) <= UNREAD
    assert keys(spoken.generated["meta_info"]) <= keys(real.generated["meta_info"])


# Fields of meta_info that nothing in tokgate reads and the emulator may leave out.
UNREAD = {
    "api_server_dispatch_finish_ts",
    "cached_tokens_details",
    "decode_throughput",
    "dp_rank",
    "first_token_latency",
    "forward_entry_time",
    "prefill_finished_time",
    "reasoning_tokens",
    "request_finished_ts",
    "request_received_ts",
    "response_sent_to_client_ts",
    "storage_prefetch_wait",
    "storage_staging_wait",
    "weight_versions",
}


def test_streams_have_the_real_fields(spoken: Transcript, real: Transcript) -> None:
    for body in ("streamed", "completion"):
        mine, theirs = (sse(getattr(transcript, body)) for transcript in (spoken, real))
        assert keys(mine[0]) == keys(theirs[0]), body
        assert keys(mine[-1]) == keys(theirs[-1]), body


def test_server_info_tells_what_the_real_one_tells(spoken: Transcript, real: Transcript) -> None:
    missing = resolved(real.server_info).keys() - resolved(spoken.server_info).keys()
    assert missing == MISSING_ARGUMENTS


def test_metrics_that_are_read_have_the_real_names_and_labels(spoken: Transcript, real: Transcript) -> None:
    names = {
        value for value in vars(metrics).values() if isinstance(value, str) and value.startswith("sglang:")
    }
    assert names
    mine, theirs = (
        {series.name: set(series.labels) for series in parse(transcript.after) if series.name in names}
        for transcript in (spoken, real)
    )
    assert theirs.keys() - mine.keys() == MISSING_METRICS[spoken.profile.name]
    assert mine.keys() <= theirs.keys()
    for name in mine:
        assert ("tp_rank" in mine[name]) == ("tp_rank" in theirs[name]), name


def test_log_has_the_real_kinds_of_lines(spoken: Transcript, real: Transcript) -> None:
    mine, theirs = ({type(event) for event in events(each)} - INCIDENTAL for each in (spoken, real))
    assert mine <= theirs
    assert theirs - mine == MISSING_EVENTS


def test_model_info_has_the_real_fields_that_are_read(spoken: Transcript, real: Transcript) -> None:
    read = {"model_path", "is_generation"}
    assert read <= keys(spoken.model_info) and read <= keys(real.model_info)
