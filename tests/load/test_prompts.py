"""Prompts, traces, schedules and the requests made of them."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.load.peers import workload
from tokgate.config.workloads import Arrival, Prompts
from tokgate.errors import UsageFault
from tokgate.load.arrivals import schedule
from tokgate.load.prompts import PromptSet, build, shipped_texts
from tokgate.load.routes import Protocol, requests, resolve


def test_token_prompts_are_fixed() -> None:
    plan = workload(requests=5, prompts=Prompts(length_tokens=40, shared_prefix=0.5, seed=7))
    found = build(plan)
    assert found.ids is not None and found.texts is None
    assert [len(ids) for ids in found.ids] == [40] * 5
    assert len({ids[:20] for ids in found.ids}) == 1 and len({ids[20:] for ids in found.ids}) == 5
    assert build(plan) == found
    # Recorded: a change of this digest makes every stored baseline incomparable.
    assert found.digest == "933bc8b365da"
    other = build(workload(requests=5, prompts=Prompts(length_tokens=40, shared_prefix=0.5, seed=8)))
    assert other.digest != found.digest


def test_ids_stay_in_the_vocabulary() -> None:
    plan = workload(requests=3, prompts=Prompts(length_tokens=500))
    found = build(plan, vocabulary=64)
    assert found.ids is not None and {i for ids in found.ids for i in ids} <= set(range(16, 64))
    with pytest.raises(UsageFault, match="vocabulary of 10 ids"):
        build(plan, vocabulary=10)


def test_texts() -> None:
    assert len(shipped_texts()) == 40 == len(set(shipped_texts()))
    found = build(workload(requests=50, prompts=Prompts(kind="text", seed=3)))
    assert found.texts is not None and len(found.texts) == 50
    assert found.texts[0] == shipped_texts()[3] and found.texts[37] == shipped_texts()[0]


def traced(tmp_path, lines: list[object], **more: object):
    path = tmp_path / "trace.jsonl"
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return workload(prompts=Prompts(kind="trace", path=str(path)), **more)


def test_trace(tmp_path) -> None:
    plan = traced(
        tmp_path,
        [{"prompt": "a", "at_s": 0}, "", {"prompt": "bé", "at_s": 0.5, "output_tokens": 3}],
        requests=2,
        arrival=Arrival("trace"),
    )
    found = build(plan)
    assert (found.texts, found.at_s, found.output_tokens) == (("a", "bé"), (0.0, 0.5), (None, 3))
    assert schedule(Arrival("trace"), 2, found) == [0.0, 0.5]
    first, second = (
        json.loads(body.partition(b"\r\n\r\n")[2])
        for body in requests(plan, found, resolve("http://127.0.0.1:30000"), Protocol())
    )
    assert first["text"] == "a" and first["sampling_params"]["max_new_tokens"] == 8
    assert second["sampling_params"]["max_new_tokens"] == 3


def test_every_fault_of_a_trace_has_its_line(tmp_path) -> None:
    plan = traced(
        tmp_path,
        [
            {"input_ids": [1, 2]},
            "{oops",
            [1],
            {"input_ids": []},
            {"prompt": "text among ids"},
            {"input_ids": [3], "max_tokens": 5},
            {"input_ids": [3], "output_tokens": 0},
            {"input_ids": [3], "at_s": 1},
            {},
        ],
    )
    with pytest.raises(UsageFault) as caught:
        build(plan)
    path = plan.prompts.path
    assert caught.value.headline == f"{path}: 8 faults in the trace"
    for line, words in {
        2: "not JSON",
        3: "expected an object, got list",
        4: "input_ids: expected a list of token ids, got '[]'",
        5: "mixes token ids and texts",
        6: "unknown key 'max_tokens' (known: input_ids, prompt, output_tokens, at_s)",
        7: "output_tokens: expected a whole number from 1, got '0'",
        8: "'at_s' must be on every line or on none",
        9: "needs either 'input_ids' or 'prompt'",
    }.items():
        assert any(d.startswith(f"{path}:{line}: ") and words in d for d in caught.value.details), line


@pytest.mark.parametrize(
    ("lines", "more", "message"),
    [
        ([{"prompt": "a"}], {"requests": 2}, "1 prompts, workload 'test' asks 2"),
        ([{"prompt": "a"}], {"arrival": Arrival("trace")}, "needs 'at_s' on every line"),
        ([{"prompt": "a", "at_s": 2}, {"prompt": "b", "at_s": 1}], {"requests": 2}, "1 fault in the trace"),
    ],
)
def test_a_trace_that_does_not_fit(tmp_path, lines, more, message) -> None:
    with pytest.raises(UsageFault, match=message):
        build(traced(tmp_path, lines, **more))


def test_a_trace_that_cannot_be_read(tmp_path) -> None:
    plan = workload(prompts=Prompts(kind="trace", path=str(tmp_path / "none.jsonl")))
    with pytest.raises(UsageFault, match="cannot be read: No such file"):
        build(plan)
    (tmp_path / "none.jsonl").write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(UsageFault, match="not UTF-8"):
        build(plan)


def test_schedules() -> None:
    empty = PromptSet((), None, "")
    assert schedule(Arrival("constant", 4.0), 3, empty) == [0, 0.25, 0.5]
    times = schedule(Arrival("poisson", 10.0, seed=1), 4000, empty)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert times == schedule(Arrival("poisson", 10.0, seed=1), 4000, empty) and times[0] == 0
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.1, rel=0.06)
    # Exponential gaps: the standard deviation equals the mean.
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.1)
    for arrival in (Arrival("constant"), Arrival("trace")):
        with pytest.raises(UsageFault):
            schedule(arrival, 3, empty)


@pytest.mark.parametrize("route", ["generate", "completions", "chat"])
def test_requests_are_whole(route) -> None:
    plan = workload(requests=2, route=route, prompts=Prompts(kind="text"))
    protocol = Protocol(model="m", headers={"Authorization": "Bearer k"})
    for body in requests(plan, build(plan), resolve("http://localhost:30000/proxy/"), protocol):
        head, _, content = body.partition(b"\r\n\r\n")
        path = {"generate": b"/generate", "completions": b"/v1/completions", "chat": b"/v1/chat/completions"}
        assert head.startswith(b"POST /proxy" + path[route] + b" HTTP/1.1\r\nHost: localhost:30000\r\n")
        assert b"Authorization: Bearer k" in head and f"Content-Length: {len(content)}".encode() in head
        sent = json.loads(content)
        assert sent["stream"] is True
        if route != "generate":
            assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
            assert (sent["model"], sent["max_tokens"], sent["ignore_eos"]) == ("m", 8, True)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("https://h:1", UsageFault),
        ("ftp://h", UsageFault),
        ("http://", UsageFault),
        ("http://h:port", UsageFault),
        ("http://no-such-host.invalid:1", UsageFault),
    ],
)
def test_addresses_that_cannot_be_measured(url, fault) -> None:
    with pytest.raises(fault):
        resolve(url)


def test_addresses() -> None:
    assert resolve("127.0.0.1:30000").address == ("127.0.0.1", 30000)
    assert resolve("http://127.0.0.1/a/").prefix == "/a" and resolve("http://127.0.0.1").port == 80


def test_a_header_cannot_smuggle_a_line() -> None:
    plan = workload()
    with pytest.raises(UsageFault, match="line break"):
        requests(plan, build(plan), resolve("127.0.0.1:1"), Protocol(headers={"a": "b\r\nc: d"}))
