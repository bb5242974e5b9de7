"""The script that holds the dial on a GPU: its judge, and its servers started side by side (emulated here)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from benchmarks.dial.fleet import Fleet, OutOfTime
from benchmarks.dial.questions import ask_for, expect, judge
from tokgate.analysis.parity import Output
from tokgate.config.engine import emulated_engine
from tokgate.config.profiles import Profile
from tokgate.models.dial import Dial
from tokgate.models.maker import Recipe

RECIPE = Recipe("tiny", 0, Dial("accept_length", 2.5, 3), None)


@pytest.fixture(scope="module")
def asked():
    return ask_for(RECIPE, prompts=6, new_tokens=20, cycles=1)


@pytest.fixture(scope="module")
def expected(asked):
    return expect(RECIPE, asked)


def answers(expected, *, cycle_count=None, first_count=None, first_ids=None):
    cycle = Output(tuple(expected.cycle_output), verify_count=cycle_count or expected.cycle_count)
    many = [
        Output(tuple(ids), verify_count=count)
        for ids, count in zip(expected.outputs, expected.counts, strict=True)
    ]
    if first_count is not None:
        many[0] = replace(many[0], verify_count=first_count)
    if first_ids is not None:
        many[0] = replace(many[0], ids=tuple(first_ids))
    return cycle, many


def test_the_questions_are_whole_cycles_and_mixed_prompts(asked):
    (cycle,) = asked.cycle.requests
    assert (len(cycle.prompt_ids), cycle.new_tokens) == (102, 481)
    assert len(asked.many.requests) == 6


def test_right_answers_are_good(expected):
    found = judge(2.5, expected, *answers(expected))
    assert found.faults == ()
    assert (found.exact, found.within, found.known) == (6, 6, 7)
    assert found.accept_length == 2.5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"first_count": 40}, "prompt 0: 40 verify passes, predicted"),
        ({"first_ids": [1] * 20}, "1 outputs are not the known ones"),
        ({"cycle_count": 194}, "accept length 2.474 over whole cycles, dial 2.5"),
        ({"cycle_count": 480}, "480 verify passes over whole cycles, predicted 192"),
    ],
)
def test_each_wrong_answer_is_told(expected, wrong, message):
    found = judge(2.5, expected, *answers(expected, **wrong))
    assert message in "; ".join(found.faults)


def test_one_pass_off_is_within_the_tolerance(expected):
    found = judge(2.5, expected, *answers(expected, first_count=expected.counts[0] + 1))
    assert (found.faults, found.exact, found.within) == ((), 5, 6)


def fleet(tmp_path, seconds, at_once):
    return Fleet(emulated_engine("steady"), tmp_path, time.monotonic() + seconds, at_once)


def test_servers_run_at_the_same_time_and_end(tmp_path):
    servers = fleet(tmp_path, 60, 4)
    up = []

    def serve(number):
        with servers.server(Profile(name=f"p{number}"), tmp_path) as server:
            up.append(server)
            until = time.monotonic() + 30
            while len(up) < 4 and time.monotonic() < until:
                time.sleep(0.02)
            return len({each.port for each in up}), [each.stopped for each in up]

    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(serve, range(4)))
    assert all(ports == 4 for ports, _ in seen)
    servers.end(20)
    assert all(server.stopped for server in up)


def test_no_more_servers_than_there_are_slots(tmp_path):
    servers = fleet(tmp_path, 60, 1)
    open_now, most = [], []

    def serve(number):
        with servers.server(Profile(name=f"p{number}"), tmp_path):
            open_now.append(number)
            most.append(len(open_now))
            open_now.remove(number)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(serve, range(2)))
    assert most == [1, 1]


def test_when_time_is_up_nothing_is_started_and_what_runs_ends(tmp_path):
    with pytest.raises(OutOfTime), fleet(tmp_path, -1, 1).server(Profile(name="late"), tmp_path):
        pass
    servers = fleet(tmp_path, 0.4, 2)
    with pytest.raises(OutOfTime, match="time was up during"), servers.server(Profile(name="slow"), tmp_path):
        pass
    servers.end(5)
