"""Forward passes of a run by how they ran: scrapes of ``/metrics`` before and after it, kept in the Sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from tokgate.server import probe
from tokgate.server.running import Server
from tokgate.sglang.metrics import Counters, GraphPasses, graph_passes, read_counters

SCRAPE_S = 10.0
_SUFFIX = "_passes"


def scrape(server: Server) -> Counters | None:
    """The server's counters as they stand; ``None`` when it does not answer with metrics."""
    status, body = probe.get(server.host, server.port, "/metrics", SCRAPE_S)
    return read_counters(body.decode("utf-8", "replace")) if status == 200 else None


def between(before: Counters | None, after: Counters | None) -> dict[str, float]:
    """Passes between two scrapes, as :attr:`tokgate.load.sample.Sample.counters` keeps them: one key for each
    field of :class:`GraphPasses` with ``_passes``; empty when the server does not count them."""
    if before is None or after is None:
        return {}
    passes = graph_passes(before, after)
    return {} if passes is None else {name + _SUFFIX: value for name, value in asdict(passes).items()}


def of_run(counters: Mapping[str, float]) -> GraphPasses | None:
    """The passes of a stored run; ``None`` when they were not counted."""
    names = GraphPasses.__dataclass_fields__
    if any(name + _SUFFIX not in counters for name in names):
        return None
    return GraphPasses(**{name: counters[name + _SUFFIX] for name in names})
