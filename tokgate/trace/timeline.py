"""What of a trace is needed to take steps apart, in flat arrays: about 50 bytes of a kernel or call.

Times are microseconds as in the file. Kineto's categories and arguments, as torch 2.8 to 2.14 write them:
``kernel``, ``gpu_memcpy`` and ``gpu_memset`` happen on the device; ``cuda_runtime`` and ``cuda_driver`` are the
calls that caused them, tied by ``args.correlation``; all kernels of a replayed graph carry the correlation of
their ``cudaGraphLaunch``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokgate.errors import UsageFault
from tokgate.trace.events import EventStream

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
CALLS = frozenset({"cuda_runtime", "cuda_driver"})
SPANS = frozenset({"user_annotation", "python_function"})
CALL_WORDS = ("launch", "memcpy", "memset")
_MERGED = "[TP"

Label = Callable[[str, str], str | None]
"""(category, name) of a span on the CPU -> what it is called here; ``None`` when it is of no interest."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans on the CPU that have one label, by beginning."""

    begin_us: Floats
    end_us: Floats
    thread: Ints


@dataclass(frozen=True, slots=True)
class Timeline:
    """One rank's trace.

    Attributes:
        begin_us, end_us: of every operation on the device, by beginning.
        correlation: of the same; -1 where there is none.
        name: of the same, an index into ``names``.
        is_kernel: of the same; the others copy or clear memory.
        call_us, call_end_us, call_correlation, call_thread: of the calls that cause operations, by correlation.
        call_is_graph: whether the call is ``cudaGraphLaunch``.
        spans: labelled spans on the CPU.
        devices: numbers of the devices that operations ran on; only the first one's are kept.
        header: the file's other values.
        events: how many there were, of any kind.
        truncated: the file ended in the middle.
    """

    begin_us: Floats
    end_us: Floats
    correlation: Ints
    name: Ints
    is_kernel: Bools
    call_us: Floats
    call_end_us: Floats
    call_correlation: Ints
    call_thread: Ints
    call_is_graph: Bools
    spans: Mapping[str, Spans]
    names: tuple[str, ...]
    devices: tuple[int, ...]
    header: Mapping[str, Any] = field(repr=False)
    events: int = 0
    truncated: bool = False

    def call_of(self) -> Ints:
        """For every operation the index of the call that caused it; -1 where the trace does not show it."""
        if not len(self.call_correlation):
            return np.full(len(self.correlation), -1, np.int64)
        at = np.searchsorted(self.call_correlation, self.correlation)
        at = np.minimum(at, len(self.call_correlation) - 1)
        return np.where(self.call_correlation[at] == self.correlation, at, -1)


class _Collector:
    """Takes events one by one."""

    def __init__(self, label: Label) -> None:
        self._label = label
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[object, object], int] = {}
        self._operations = {key: array("d") for key in ("begin", "end")}
        self._tags = {key: array("q") for key in ("correlation", "name", "kernel", "device")}
        self._call_times = {key: array("d") for key in ("begin", "end")}
        self._call_tags = {key: array("q") for key in ("correlation", "thread", "graph")}
        self._spans: dict[str, tuple[array[float], array[float], array[int]]] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        """Keep what is of interest of an event."""
        if event.get("ph") != "X":
            return
        category = str(event.get("cat", "")).lower()
        if category in ON_DEVICE:
            self._operation(event, category)
        elif category in CALLS:
            self._call(event)
        elif category in SPANS:
            name = self._label(category, str(event.get("name", "")))
            if name is not None:
                begin, end = _times(event)
                begins, ends, threads = self._spans.setdefault(name, (array("d"), array("d"), array("q")))
                begins.append(begin)
                ends.append(end)
                threads.append(self._thread(event))

    def _operation(self, event: Mapping[str, Any], category: str) -> None:
        args = event.get("args") or {}
        begin, end = _times(event)
        self._operations["begin"].append(begin)
        self._operations["end"].append(end)
        self._tags["correlation"].append(_whole(args.get("correlation"), -1))
        name = str(event.get("name", ""))
        self._tags["name"].append(self._names.setdefault(name, len(self._names)))
        self._tags["kernel"].append(category == "kernel")
        self._tags["device"].append(_whole(args.get("device"), 0))

    def _call(self, event: Mapping[str, Any]) -> None:
        name = str(event.get("name", "")).lower()
        correlation = _whole((event.get("args") or {}).get("correlation"), -1)
        if correlation < 0 or not any(word in name for word in CALL_WORDS):
            return
        begin, end = _times(event)
        self._call_times["begin"].append(begin)
        self._call_times["end"].append(end)
        self._call_tags["correlation"].append(correlation)
        self._call_tags["thread"].append(self._thread(event))
        self._call_tags["graph"].append("graphlaunch" in name)

    def _thread(self, event: Mapping[str, Any]) -> int:
        process = event.get("pid")
        if isinstance(process, str) and process.startswith(_MERGED):
            raise UsageFault(
                "a merged trace mixes the ranks' numbers: give the ranks' own files (...-TP-0...)"
            )
        return self._threads.setdefault((process, event.get("tid")), len(self._threads))

    def timeline(self, stream: EventStream, events: int) -> Timeline:
        """Everything that was kept, sorted."""
        device = np.array(self._tags["device"], np.int64)
        devices = tuple(map(int, np.unique(device)))
        begin = np.array(self._operations["begin"])
        mine = np.flatnonzero(device == devices[0]) if devices else np.empty(0, np.int64)
        order = mine[np.argsort(begin[mine], kind="stable")]
        calls = np.argsort(np.array(self._call_tags["correlation"], np.int64), kind="stable")
        spans = {}
        for name, columns in self._spans.items():
            first = np.argsort(np.array(columns[0]), kind="stable")
            spans[name] = Spans(
                np.array(columns[0])[first],
                np.array(columns[1])[first],
                np.array(columns[2], np.int64)[first],
            )
        return Timeline(
            begin_us=begin[order],
            end_us=np.array(self._operations["end"])[order],
            correlation=np.array(self._tags["correlation"], np.int64)[order],
            name=np.array(self._tags["name"], np.int64)[order],
            is_kernel=np.array(self._tags["kernel"], np.bool_)[order],
            call_us=np.array(self._call_times["begin"])[calls],
            call_end_us=np.array(self._call_times["end"])[calls],
            call_correlation=np.array(self._call_tags["correlation"], np.int64)[calls],
            call_thread=np.array(self._call_tags["thread"], np.int64)[calls],
            call_is_graph=np.array(self._call_tags["graph"], np.bool_)[calls],
            spans=spans,
            names=tuple(self._names),
            devices=devices,
            header=stream.header,
            events=events,
            truncated=stream.truncated,
        )


def read_timeline(path: Path, label: Label) -> Timeline:
    """Read a trace.

    Args:
        path: of one rank, plain or gzip.
        label: which spans on the CPU to keep, and under which name.

    Raises:
        UsageFault: unreadable, no trace, or a merged one.
    """
    stream = EventStream(path)
    collector = _Collector(label)
    events = 0
    for event in stream:
        events += 1
        try:
            collector.take(event)
        except (AttributeError, TypeError, ValueError) as error:
            raise UsageFault(f"{path}: event {events} is not one of a trace: {error}") from error
    return collector.timeline(stream, events)


def _times(event: Mapping[str, Any]) -> tuple[float, float]:
    begin = float(event["ts"]) if "ts" in event else float("nan")
    if begin != begin:
        raise ValueError("no time stamp")
    return begin, begin + float(event.get("dur") or 0.0)


def _whole(value: object, otherwise: int) -> int:
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    return int(value) if isinstance(value, (int, float)) else otherwise
