"""Explained logs as one HTML page that needs nothing else: text, tables, plots as SVG inside."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from tokgate.errors import UsageFault
from tokgate.report.explain_record import Explanation
from tokgate.report.explain_series import Series
from tokgate.report.explain_text import headline, text
from tokgate.report.explain_traces import ExplainedTrace, bars

MAX_POINTS = 2000


def page(
    explained: Sequence[tuple[Explanation, Series]],
    comparisons: Sequence[str],
    *,
    title: str,
    traces: Sequence[ExplainedTrace] = (),
) -> str:
    """The page.

    Args:
        explained: record and series of each log.
        comparisons: comparison texts.
        title: of the page.
        traces: profiler traces.

    Raises:
        UsageFault: matplotlib is not installed.
    """
    from jinja2 import Environment, select_autoescape

    environment = Environment(autoescape=select_autoescape(default=True, default_for_string=True))
    template = environment.from_string(
        (resources.files("tokgate.report") / "explain.html.j2").read_text(encoding="utf-8")
    )
    logs = [
        {
            "name": record.name,
            "headline": headline(record),
            "text": text(record),
            "plot": plot(series),
            "captures": record.captures,
        }
        for record, series in explained
    ]
    return template.render(
        title=title, logs=logs, comparisons=list(comparisons), traces=traces, bars=bars(traces)
    )


def plot(series: Series) -> str:
    """Decode rate and accept length against time, as SVG; empty when there is nothing to plot."""
    if not len(series):
        return ""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageFault(
            "--html draws with matplotlib, which is not installed: pip install matplotlib"
        ) from error
    has_accept = bool((~np.isnan(series.accept_length)).any())
    figure = Figure(figsize=(9, 4.2 if has_accept else 2.6), layout="constrained")
    axes = figure.subplots(1 + has_accept, 1, sharex=True, squeeze=False)[:, 0]
    start = series.time_s.min()
    for rank in series.ranks:
        rows = np.flatnonzero(series.of_rank(rank))
        if not len(rows):
            continue
        rows = _thinned(rows)
        since = series.time_s[rows] - start
        axes[0].plot(since, series.rate_tok_s[rows], ".", markersize=3, label=rank or "decode")
        if has_accept:
            axes[1].plot(since, series.accept_length[rows], ".", markersize=3)
    axes[0].set_ylabel("tok/s")
    axes[0].set_ylim(bottom=0)
    if len(series.ranks) > 1:
        axes[0].legend(fontsize="small")
    if has_accept:
        axes[1].set_ylabel("accept length")
        axes[1].set_ylim(bottom=1)
    axes[-1].set_xlabel("seconds since the first decode line that counts")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    drawn = buffer.getvalue()
    return drawn[drawn.index("<svg") :]


def _thinned(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows[:: -(-len(rows) // MAX_POINTS)]
