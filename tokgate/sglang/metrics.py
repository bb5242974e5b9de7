"""SGLang's ``/metrics``: Prometheus text -> figures. A metric that is not there is ``None``, never 0.

``sglang:cuda_graph_passes_total`` counts forward passes by mode (``decode_cuda_graph``, ``decode_none``,
``prefill_cuda_graph``, ``prefill_none``): the only proof of replay that SGLang itself gives. Its series
appear with their first pass, so a missing mode beside a present one is a true zero, and no series at all
says nothing. ``sglang:is_cuda_graph`` stays 0 whatever happens and is not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(
    r'^([A-Za-z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$', re.M
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

GRAPH_PASSES = "sglang:cuda_graph_passes_total"
GENERATED = "sglang:generation_tokens_total"
PROMPT = "sglang:prompt_tokens_total"
VERIFY_CALLS = "sglang:spec_verify_calls_total"
ACCEPT_LENGTH = "sglang:spec_accept_length"
RETRACTED = "sglang:num_retracted_reqs"


@dataclass(frozen=True, slots=True)
class Series:
    """One sample of one series."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Counters:
    """What the gate reads from one scrape; sums over ranks of one metric would count a step several
    times, so the first tensor-parallel rank stands for all.

    Attributes:
        graph_passes: forward passes by mode; ``None`` when the server does not count them.
        generated_tokens, prompt_tokens, verify_calls: totals since start.
        retracted_requests: requests taken back at this moment.
        accept_length: of the last report interval, a gauge; servers without speculation export it as 0,
            which is none.
    """

    graph_passes: Mapping[str, float] | None = None
    generated_tokens: float | None = None
    prompt_tokens: float | None = None
    verify_calls: float | None = None
    retracted_requests: float | None = None
    accept_length: float | None = None


@dataclass(frozen=True, slots=True)
class GraphPasses:
    """Forward passes between two scrapes. Zero means that the counter is there and did not move.

    Attributes:
        decode_graph, decode_eager: of the target, replayed from a graph or run without.
        prefill_graph, prefill_eager: likewise for prefill (counted from 0.5.10 or 0.5.11 on).
    """

    decode_graph: float
    decode_eager: float
    prefill_graph: float
    prefill_eager: float

    @property
    def decode_graph_share(self) -> float | None:
        """Share of decode passes replayed from a graph; ``None`` when there was no decode pass."""
        total = self.decode_graph + self.decode_eager
        return self.decode_graph / total if total else None


def parse(text: str) -> Iterator[Series]:
    """Every sample of a Prometheus text exposition; comment lines and garbage are skipped."""
    for match in _SAMPLE.finditer(text):
        name, labels, printed = match.groups()
        try:
            value = float(printed)
        except ValueError:
            continue
        yield Series(name, {key: _unescape(raw) for key, raw in _LABEL.findall(labels or "")}, value)


def read_counters(text: str) -> Counters:
    """The gate's figures from one scrape of ``/metrics``."""
    wanted: dict[str, list[Series]] = {}
    for series in parse(text):
        wanted.setdefault(series.name, []).append(series)
    passes: dict[str, float] = {}
    for series in _first_rank(wanted.get(GRAPH_PASSES, [])):
        mode = series.labels.get("mode", "")
        passes[mode] = passes.get(mode, 0.0) + series.value
    return Counters(
        graph_passes=passes or None,
        generated_tokens=_total(wanted, GENERATED),
        prompt_tokens=_total(wanted, PROMPT),
        verify_calls=_total(wanted, VERIFY_CALLS),
        retracted_requests=_total(wanted, RETRACTED),
        accept_length=_total(wanted, ACCEPT_LENGTH) or None,
    )


def graph_passes(before: Counters, after: Counters) -> GraphPasses | None:
    """Passes between two scrapes of one server; ``None`` when the later one does not count them.

    An earlier scrape without the counter is a server that had made no pass yet.
    """
    if after.graph_passes is None:
        return None
    earlier = before.graph_passes or {}

    def delta(mode: str) -> float:
        return (after.graph_passes or {}).get(mode, 0.0) - earlier.get(mode, 0.0)

    return GraphPasses(
        decode_graph=delta("decode_cuda_graph"),
        decode_eager=delta("decode_none"),
        prefill_graph=delta("prefill_cuda_graph"),
        prefill_eager=delta("prefill_none"),
    )


def _first_rank(series: list[Series]) -> list[Series]:
    ranks = {item.labels.get("tp_rank") for item in series}
    first = "0" if "0" in ranks else min((rank for rank in ranks if rank is not None), default=None)
    return [item for item in series if item.labels.get("tp_rank") in {first, None}]


def _total(wanted: Mapping[str, list[Series]], name: str) -> float | None:
    values = [item.value for item in _first_rank(wanted.get(name, [])) if not math.isnan(item.value)]
    return sum(values) if values else None


def _unescape(raw: str) -> str:
    return raw.replace(r"\"", '"').replace(r"\n", "\n").replace(r"\\", "\\")
