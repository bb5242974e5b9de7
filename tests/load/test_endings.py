"""Runs that end before they are over: by a deadline, by the caller, by the loss of a worker."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

import pytest

from tests.load.peers import HEAD, QUICK, chunk, event, stream, workload
from tests.load.test_client import run, wait_for, workers_of
from tokgate.errors import UsageFault
from tokgate.load.client import ClientLost, Deadlines, Interrupted, Stall
from tokgate.load.limits import LOWEST_S


@pytest.mark.parametrize(
    ("limit", "parts", "phase"),
    [
        ("first_token_s", [HEAD, 2, ...], "first token"),
        ("gap_s", [HEAD + chunk(event(1)), 2, ...], "stream"),
        (
            "request_s",
            [HEAD, *(part for n in range(1, 90) for part in (chunk(event(n)), 0.03)), ...],
            "request",
        ),
        ("drain_s", [HEAD, *(part for n in range(1, 90) for part in (chunk(event(n)), 0.03)), ...], "drain"),
    ],
)
def test_the_shortest_deadline_is_applied(scripted, limit, parts, phase) -> None:
    server = scripted(lambda _: parts)
    with pytest.raises(Stall) as caught:
        run(server.url, workload(), deadlines=replace(QUICK, **{limit: LOWEST_S}))
    assert caught.value.phase == phase and caught.value.waited_s > LOWEST_S
    assert caught.value.void.bound == LOWEST_S and caught.value.void.cause == "stalled"


@pytest.mark.parametrize(("name", "lowest"), [("gap_s", 0.1), ("first_token_s", 0.1), ("worker_s", 1)])
def test_shorter_deadlines_are_refused_with_the_lowest(name, lowest) -> None:
    with pytest.raises(UsageFault, match=f"deadline {name} is 0.05 s; the lowest is {lowest:g} s"):
        Deadlines(**{name: 0.05})
    Deadlines(**{name: lowest})


@pytest.mark.usefixtures("reader")
def test_a_run_that_is_stopped_brings_what_it_has(scripted) -> None:
    """Whoever reads, and of two workers both."""
    server = scripted(lambda number: [HEAD + chunk(event(1)) + chunk(event(2)) + chunk(event(3)), ...])

    def stop() -> str:
        return "enough" if server.was_read(4) else ""

    with pytest.raises(Interrupted, match="enough") as caught:
        run(server.url, workload(requests=9, concurrency=4), workers=2, stop=stop)
    found = caught.value.measurement.requests
    assert sorted((r.outcome, r.steps) for r in found) == [("interrupted", 3)] * 4 + [("unsent", 0)] * 5
    assert caught.value.void.cause == "interrupted" and caught.value.void.measured == 9
    assert not workers_of(os.getpid())


def test_a_run_that_is_stopped_before_it_began_has_nothing(scripted) -> None:
    server = scripted(lambda _: [stream(8)])
    with pytest.raises(Interrupted, match="never mind") as caught:
        run(server.url, workload(requests=2), stop=lambda: "never mind")
    assert caught.value.measurement.requests == () and caught.value.measurement.metrics == {}
    assert server.requests == [] and not workers_of(os.getpid())


def test_of_two_workers_one_dies_and_the_other_brings_what_it_has(scripted) -> None:
    server = scripted(lambda _: [HEAD + chunk(event(1)) + chunk(event(2)), ...])

    def kill() -> None:
        wait_for(lambda: server.was_read(2))
        os.kill(workers_of(os.getpid())[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(ClientLost, match="of 3 of 6 requests nothing is known") as caught:
        run(server.url, workload(requests=6, concurrency=2), workers=2)
    thread.join()
    assert [r.outcome for r in caught.value.measurement.requests] == ["interrupted", "unsent", "unsent"]
    assert not workers_of(os.getpid())
