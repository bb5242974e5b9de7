"""Gathers what an SGLang log says into one record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

import numpy as np

from tokgate.report.explain_record import Capture, Explanation, Phase, Rate, rank_order
from tokgate.report.explain_series import Series, SeriesBuilder
from tokgate.sglang import log_events as ev
from tokgate.sglang.http import resolved
from tokgate.sglang.log import phase_of
from tokgate.sglang.log_columns import Columns
from tokgate.sglang.log_scan import seconds_of, time_of

MAX_QUOTED = 12


class Explainer:
    """Gathers one log's items; ``result`` gives the record and the series behind its rates."""

    def __init__(self, name: str) -> None:
        self._record = Explanation(name)
        self._builder = SeriesBuilder()
        self._phases: list[tuple[str, datetime | None, str]] = []
        self._begun: datetime | None = None
        self._open: dict[tuple[str, str], ev.CaptureBegin] = {}

    def take(self, items: Iterable[ev.Event | Columns]) -> None:
        """Gather all items of a scan."""
        for item in items:
            if isinstance(item, Columns):
                self._builder.add(item)
                self._see(time_of(float(item.time_s[0])))
                self._see(time_of(float(item.time_s[-1])))
            else:
                self._see(item.time)
                self._begun = self._begun or item.time
                self._event(item)

    def result(self) -> tuple[Explanation, Series]:
        """The record, and the decode lines that count."""
        record, builder = self._record, self._builder
        series = builder.series()
        record.decode_lines, record.prefill_lines = builder.decode_lines, builder.prefill_lines
        record.idle_lines, record.stride = builder.idle_lines, series.stride
        record.graph_lines, record.accept_length = builder.graph_lines, builder.accept_length
        record.graph_device = "cpu" if builder.cpu else "cuda"
        record.rates = rates_of(series)
        record.phases = self._finished_phases()
        record.captures += [
            Capture(
                rank, kind, ended=False, available_gb=begin.available_gb, sizes=begin.sizes, begun=begin.time
            )
            for (rank, kind), begin in self._open.items()
        ]
        seen = {capture.rank for capture in record.captures} | set(series.ranks)
        record.ranks = sorted(seen | {name for name, *_ in record.weights}, key=rank_order)
        self._name_targets()
        kinds = list(dict.fromkeys(capture.kind for capture in record.captures))
        record.captures.sort(key=lambda capture: (kinds.index(capture.kind), rank_order(capture.rank)))
        return record, series

    def _see(self, time: datetime | None) -> None:
        if time is not None:
            record = self._record
            record.first = time if record.first is None else min(record.first, time)
            record.last = time if record.last is None else max(record.last, time)

    def _event(self, event: ev.Event) -> None:
        record = self._record
        rank = event.rank or ""
        phase = phase_of(event)
        if phase is not None and not record.ready:
            self._phases.append((phase, event.time, rank))
        match event:
            case ev.ServerArgs():
                record.arguments = resolved(dict(event.values))
                record.starts += 1
            case ev.DecodeBatch() | ev.PrefillBatch():
                self._builder.add(one_row(event))
            case ev.CaptureBegin(kind=kind):
                self._open[rank, kind] = event
            case ev.CaptureEnd():
                self._capture_end(event, rank)
            case ev.WeightsEnd():
                record.weights.append((rank, event.model, event.seconds, event.used_gb))
            case ev.KvCache():
                record.kv_cache_tokens = record.kv_cache_tokens or event.tokens
            case ev.Ready():
                record.ready = True
            case ev.Serving():
                record.serving = True
            case ev.StartupTimings():
                record.startup_timings = event.seconds
            case ev.NcclVersion():
                record.nccl[rank] = event.version
            case ev.HybridAttention():
                record.hybrid = event
            case ev.Hint():
                record.hints.setdefault(event.text, event.key)
            case ev.Benign():
                record.benign[event.reason] = record.benign.get(event.reason, 0) + 1
            case _:
                self._fault(event)

    def _fault(self, event: ev.Event) -> None:
        record = self._record
        match event:
            case ev.Fatal() if len(record.fatal) < MAX_QUOTED:
                record.fatal.append(event)
            case ev.ExceptionSeen() if len(record.exceptions) < MAX_QUOTED:
                record.exceptions.append(event)
            case ev.Watchdog() if len(record.watchdogs) < MAX_QUOTED:
                record.watchdogs.append(event)
            case ev.Suspect():
                record.suspect_lines += 1
                if len(record.suspects) < MAX_QUOTED and event.text not in record.suspects:
                    record.suspects.append(event.text)
            case ev.HealthFailure():
                record.health_failures += 1
            case ev.Retraction():
                record.retractions += 1
            case ev.Shutdown():
                record.shutdown = record.shutdown or event
            case _:
                pass

    def _capture_end(self, event: ev.CaptureEnd, rank: str) -> None:
        begin = self._open.pop((rank, event.kind), None)
        self._record.captures.append(
            Capture(
                rank=rank,
                kind=event.kind,
                ended=True,
                seconds=event.seconds,
                used_gb=event.used_gb,
                available_gb=event.available_gb,
                sizes=event.sizes or (begin.sizes if begin else None),
                begun=begin.time if begin else None,
            )
        )

    def _finished_phases(self) -> list[Phase]:
        """The phases of the lowest rank, with those of the parent process, which prints no rank."""
        lowest = min((rank for _, _, rank in self._phases if rank), key=rank_order, default="")
        steps: list[tuple[str, datetime | None]] = []
        for name, time, rank in self._phases:
            if rank in {"", lowest} and (not steps or steps[-1][0] != name):
                steps.append((name, time))
        phases = []
        for index, (name, begun) in enumerate(steps):
            after = steps[index + 1][1] if index + 1 < len(steps) else None
            seconds = (after - begun).total_seconds() if begun is not None and after is not None else None
            phases.append(Phase(name, begun, seconds))
            if name == "ready" and begun is not None and self._begun is not None:
                self._record.ready_after_s = (begun - self._begun).total_seconds()
        return phases

    def _name_targets(self) -> None:
        """Up to 0.5.13 a target capture names no kind; with draft captures beside it, it is the verify."""
        record = self._record
        kinds = {capture.kind for capture in record.captures}
        if (
            "draft-decode" in kinds
            and "target-verify" not in kinds
            and "speculative_algorithm" not in (record.arguments)
        ):
            record.captures = [_as_verify(capture) for capture in record.captures]


def _as_verify(capture: Capture) -> Capture:
    return replace(capture, kind="target-verify") if capture.kind == "target-decode" else capture


def rates_of(series: Series) -> list[Rate]:
    """Rates by running requests, of lines with at least one running request."""
    found = []
    for running in np.unique(series.running[series.running > 0]):
        rows = series.running == running
        low, median, high = np.percentile(series.rate_tok_s[rows], [10, 50, 90])
        accept = series.accept_length[rows]
        length = float(np.nanmean(accept)) if not np.isnan(accept).all() else None
        found.append(
            Rate(
                running=int(running),
                lines=int(rows.sum()),
                median_tok_s=float(median),
                low_tok_s=float(low),
                high_tok_s=float(high),
                accept_length=length,
                cycle_ms=(length or 1.0) * int(running) / float(median) * 1000
                if median > 0
                else float("inf"),
            )
        )
    return found


def one_row(event: ev.DecodeBatch | ev.PrefillBatch) -> Columns:
    """An unusual statistics line, as columns of one row."""
    decode = isinstance(event, ev.DecodeBatch)
    accept = event.accept_length if isinstance(event, ev.DecodeBatch) else None
    return Columns(
        time_s=np.array([int(seconds_of(event.time) or 0)]),
        rank=np.array([0]),
        decode=np.array([decode]),
        running=np.array([event.running if event.running is not None else -1]),
        rate_tok_s=np.array([event.gen_tok_s if isinstance(event, ev.DecodeBatch) else np.nan]),
        accept_length=np.array([np.nan if accept is None else accept]),
        graph=np.array([-1 if event.graph is None else int(event.graph)], np.int8),
        cpu_graph=np.array([isinstance(event, ev.DecodeBatch) and event.graph_device == "cpu"]),
        ranks=(event.rank or "",),
    )
