"""A whole run's time, cycle by cycle: client, log and what lies between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tokgate.gate.cycle.log import LogMark
from tokgate.gate.cycle.whole import whole_cycle, whole_cycle_lines
from tokgate.gate.runs import Measured
from tokgate.load.sample import Sample

Make = Callable[..., Sample]
PREFILL = (
    "Prefill batch, #new-seq: 1, #new-token: 29, #cached-token: 0, token usage: 0.00, #running-req: 0, "
    "#queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 14.32"
)


def decode(rate: float, running: int = 1, accept: str = "accept len: 2.50, accept rate: 0.50, ") -> str:
    return (
        f"Decode batch, #running-req: {running}, #token: 3424, token usage: 0.07, {accept}cuda graph: True, "
        f"gen throughput (token/s): {rate:.2f}, #queue-req: 0"
    )


def grown(path: Path, *messages: str) -> None:
    with path.open("a") as file:
        file.writelines(f"[2026-11-29 17:26:22] {message}\n" for message in messages)


def test_only_lines_within_the_run_and_of_all_its_streams_count(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    grown(log, PREFILL, decode(10), decode(20))
    mark = LogMark(log)
    # The first line after idle spans the idle time; one stream less is another batch.
    grown(log, PREFILL, decode(26.19), decode(500), decode(500), decode(300, running=2), decode(250))
    found = mark.read(1)
    assert found["log_decode_lines"] == 3
    assert found["log_cycle_ms"] == pytest.approx((5 + 5 + 10) / 3)
    assert LogMark(log).read(1) == {}
    log.unlink()
    assert mark.read(1) == {}


def test_without_speculation_a_line_tells_the_step(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    mark = LogMark(log)
    grown(log, PREFILL, decode(1, 8, ""), decode(4000, 8, ""))
    assert mark.read(8) == {"log_cycle_ms": pytest.approx(2.0), "log_decode_lines": 1}
    assert mark.read(4) == {}


def measured(make: Make, logged: float | None, **metrics: float) -> Measured:
    counters = {} if logged is None else {"log_cycle_ms": logged}
    speculative = "accept_length" in metrics
    sample = make(metrics, resolved={"speculative_algorithm": "EAGLE3" if speculative else None})
    sample = replace(sample, counters=counters)
    return Measured((sample, sample), (), (Path("a"), Path("b")))


def test_what_lies_at_each_border_is_named(make_sample: Make) -> None:
    runs = measured(make_sample, 5.0, output_tok_s=400, accept_length=2.4, cycle_ms=5.4)
    assert whole_cycle(runs, 1) == pytest.approx({"whole_ms": 6.0, "decode_ms": 5.4, "log_ms": 5.0})
    assert whole_cycle_lines(runs, 1) == [
        "of a whole run 6.00 ms a cycle (accept length x streams / rate): 5.40 ms in decode as the client sees it, "
        "0.60 ms (10 %) in prefill, first tokens and idle streams; the engine's log says 5.00 ms, so 0.40 ms (7 %) "
        "lie outside its steps: detokenising, HTTP, client"
    ]


def test_a_step_without_speculation_and_without_a_line_in_the_log(make_sample: Make) -> None:
    (line,) = whole_cycle_lines(measured(make_sample, None, output_tok_s=800, step_ms_mean=9.5), 8)
    assert line.startswith("of a whole run 10.00 ms a step (streams / rate): 9.50 ms in decode")
    assert line.endswith("; of the engine's log no interval is known that lies within a run")


def test_without_an_accept_length_nothing_is_said(make_sample: Make) -> None:
    sample = make_sample({"output_tok_s": 400.0}, resolved={"speculative_algorithm": "EAGLE3"})
    assert whole_cycle_lines(Measured((sample,), (), (Path("a"),)), 1) == []
