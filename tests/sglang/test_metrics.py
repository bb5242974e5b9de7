"""Counters from real scrapes; a counter that is absent is never a zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokgate.sglang.metrics import Counters, graph_passes, parse, read_counters

SAMPLES = Path(__file__).parent / "samples" / "0.5.15.post1"


def scrape(name: str) -> Counters:
    return read_counters((SAMPLES / f"{name}.metrics.prom").read_text())


def test_real_scrapes() -> None:
    base, eagle = scrape("base"), scrape("eagle3")
    assert base.graph_passes == {"prefill_none": 3.0, "decode_cuda_graph": 309.0}
    assert eagle.graph_passes == {"prefill_none": 3.0, "decode_cuda_graph": 106.0}
    assert (base.verify_calls, eagle.verify_calls) == (None, 103.0)
    # A server without speculation exports the gauge as 0: no accept length, not one of 0.
    assert base.accept_length is None
    assert (eagle.generated_tokens, eagle.prompt_tokens, eagle.accept_length) == (308.0, 9.0, 3.15)


def test_every_sample_line_is_parsed() -> None:
    text = (SAMPLES / "eagle3.metrics.prom").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(list(parse(text))) == len(lines) > 100


def test_deltas_by_mode() -> None:
    passes = graph_passes(Counters(), scrape("eagle3"))
    assert passes is not None
    assert (passes.decode_graph, passes.decode_eager, passes.prefill_eager) == (106.0, 0.0, 3.0)
    assert passes.decode_graph_share == 1.0
    later = Counters(graph_passes={"decode_cuda_graph": 110.0, "decode_none": 6.0, "prefill_none": 4.0})
    mixed = graph_passes(scrape("eagle3"), later)
    assert mixed is not None
    assert (mixed.decode_graph, mixed.decode_eager, mixed.prefill_eager) == (4.0, 6.0, 1.0)
    assert mixed.decode_graph_share == pytest.approx(0.4)


def test_absent_counter_is_none_not_zero() -> None:
    assert graph_passes(scrape("eagle3"), Counters()) is None
    assert read_counters("") == Counters()
    assert read_counters("<html>not metrics</html>\n{broken") == Counters()
    still = graph_passes(scrape("eagle3"), scrape("eagle3"))
    assert still is not None
    assert still.decode_graph_share is None


def test_one_rank_stands_for_all() -> None:
    text = "".join(
        f'sglang:cuda_graph_passes_total{{mode="decode_cuda_graph",tp_rank="{rank}"}} {100 + rank}.0\n'
        for rank in range(8)
    )
    assert read_counters(text).graph_passes == {"decode_cuda_graph": 100.0}


def test_labels_with_quotes_braces_and_timestamps() -> None:
    series = list(parse('a{x="q\\"}{",y="2"} 1.5e3 1700000000\nb NaN\n# c 1\n'))
    assert (series[0].name, series[0].value) == ("a", 1500.0)
    assert series[0].labels == {"x": 'q"}{', "y": "2"}
    assert len(series) == 2
