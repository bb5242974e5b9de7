"""The workers' results, read back and put on one time axis."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokgate.load.dating import Packets, ways
from tokgate.load.sample import Request

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Every token-bearing event of a run, request by request in the order of :attr:`Recording.requests`.

    Attributes:
        owner: position of the request.
        t_s: when it arrived, seconds from the run's start.
        added: tokens that it brought by the server's counter; 0 where the server has no running counter.
        lag_s: user clock minus kernel stamp, NaN without a stamp.
        merged: it came in one read, or joined by the kernel, with a later event, so its time is that event's.
    """

    owner: Ints
    t_s: Floats
    added: Ints
    lag_s: Floats
    merged: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Recording:
    """What the workers brought back.

    Attributes:
        requests: in the order of sending.
        ended_s: per request, when its response was over; NaN where it never began.
        timeline: all token-bearing events.
        counted: the server gave running token counters.
        stamped: the kernel stamps reads on this host.
        reader: who read, ``c`` or ``python``, and why not the compiled one; of several workers the slowest kind.
        drops: packets that a tap on the wire missed; ``None`` without a tap.
        unread_bytes: with a tap, the most that lay unread on a connection when an event arrived.
        window_s: how long the workers sent and read.
        cpu_s: CPU time of the workers in it.
        peak_mib: peak memory of the workers, added up.
        run_delay_s: the workers' time runnable but not running, ``None`` when not reported.
        clock_step_s: largest change of CLOCK_REALTIME against CLOCK_MONOTONIC between two samples.
        server_e2e_s: per request, its duration as the server reports it, NaN when it does not.
        stalls: per stalled request (phase, waited_s, limit_s), earliest first.
    """

    requests: tuple[Request, ...]
    ended_s: Floats
    timeline: Timeline
    counted: bool
    stamped: bool
    reader: tuple[str, str]
    drops: int | None
    unread_bytes: int
    window_s: float
    cpu_s: float
    peak_mib: float
    run_delay_s: float | None
    clock_step_s: float
    server_e2e_s: Floats
    stalls: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True, slots=True)
class _Part:
    header: dict[str, Any]
    t_s: Floats
    lag_s: Floats
    user_ns: Ints
    counts: Ints
    unread_bytes: int


def read(paths: Sequence[Path], start_ns: int) -> Recording:
    """Read the workers' result files.

    Args:
        paths: one per worker.
        start_ns: the run's start, CLOCK_MONOTONIC.
    """
    parts = [_read_part(path, start_ns) for path in paths]
    entries = [
        (entry, part, start)
        for part in parts
        for entry, start in zip(part.header["requests"], _starts(part.header["requests"]), strict=True)
    ]
    entries.sort(key=lambda item: (item[0]["intended_ns"] or 2**63, item[0]["index"]))
    built = [_request(entry, part, start, start_ns) for entry, part, start in entries]
    timeline = Timeline(
        owner=np.concatenate(
            [np.full(len(b.t_s), i) for i, b in enumerate(built)] or [np.zeros(0, np.int64)]
        ),
        t_s=_joined([b.t_s for b in built], np.float64),
        added=_joined([b.added for b in built], np.int64),
        lag_s=_joined([b.lag_s for b in built], np.float64),
        merged=_joined([b.merged for b in built], np.bool_),
    )
    stalls = sorted((entry["ended_ns"], entry["stall"]) for entry, _, _ in entries if entry["stall"][0])
    delays = [part.header["run_delay_s"] for part in parts]
    tapped = bool(parts) and all("tap" in part.header for part in parts)
    return Recording(
        requests=tuple(b.request for b in built),
        ended_s=np.array(
            [(e["ended_ns"] - start_ns) / 1e9 if e["ended_ns"] else np.nan for e, _, _ in entries]
        ),
        timeline=timeline,
        counted=all(b.counted for b in built),
        stamped=all(part.header["stamped"] for part in parts),
        reader=max((_pair(part.header["reader"]) for part in parts), default=("", "")),
        drops=sum(part.header["tap"]["drops"] for part in parts) if tapped else None,
        unread_bytes=max((part.unread_bytes for part in parts), default=0),
        window_s=max((part.header["window_s"] for part in parts), default=0.0),
        cpu_s=sum(part.header["cpu_s"] for part in parts),
        peak_mib=sum(part.header["peak_mib"] for part in parts),
        run_delay_s=None if None in delays else sum(delays),
        clock_step_s=max((_clock_step(part.header["clocks"]) for part in parts), default=0.0),
        server_e2e_s=np.array([np.nan if (v := e["server_e2e_s"]) is None else v for e, _, _ in entries]),
        stalls=tuple((phase, waited, limit) for _, (phase, waited, limit) in stalls),
    )


def _joined(arrays: Sequence[NDArray[Any]], kind: type) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, kind)


def _starts(requests: Sequence[dict[str, Any]]) -> list[int]:
    ends = np.cumsum([entry["events"] for entry in requests], dtype=np.int64)
    return [0, *ends.tolist()][: len(requests)]


def _clock_step(clocks: Sequence[Sequence[int]]) -> float:
    offsets = np.array([offset for _, offset in clocks])
    return float(np.abs(np.diff(offsets)).max() / 1e9) if len(offsets) > 1 else 0.0


def _pair(reader: Sequence[str]) -> tuple[str, str]:
    name, why = reader
    return name, why


def _read_part(path: Path, start_ns: int) -> _Part:
    with path.open("rb") as file:
        header = json.loads(file.readline())
        events = sum(entry["events"] for entry in header["requests"])
        stamps = np.fromfile(file, np.int64, 2 * events).reshape(-1, 2)
        user_ns = np.fromfile(file, np.int64, events)
        counts = np.fromfile(file, np.int32, events).astype(np.int64)
        ends, packets = np.zeros(0, np.int64), None
        if "tap" in header:
            ends = np.fromfile(file, np.int64, events)
            packets = Packets.read(file, header["tap"]["packets"])
    arrival_ns = stamps[:, 0] * 1_000_000_000 + stamps[:, 1]
    unread = 0
    if packets is not None:
        arrival_ns = _tapped(header, packets, ends, start_ns)
        unread = _unread_bytes(header, arrival_ns, user_ns, ends)
    stamped = arrival_ns > 0
    t_s = _monotonic_ns(header, np.where(stamped, arrival_ns, user_ns), start_ns) / 1e9
    lag_s = np.where(stamped, user_ns - arrival_ns, np.nan) / 1e9
    return _Part(header, t_s, lag_s, user_ns, counts, unread)


def _monotonic_ns(header: dict[str, Any], real_ns: Ints, start_ns: int) -> Floats:
    """CLOCK_REALTIME on the run's axis: CLOCK_MONOTONIC less its start."""
    # The offset of the clocks between its samples, as a function of CLOCK_REALTIME. Differences first:
    # nanoseconds since 1970 do not fit a float.
    base = header["clocks"][0]
    at = np.array([mono + offset - base[0] - base[1] for mono, offset in header["clocks"]], np.float64)
    drift = np.array([offset - base[1] for _, offset in header["clocks"]], np.float64)
    since = (real_ns - (base[0] + base[1])).astype(np.float64)
    found: Floats = since - np.interp(since, at, drift) + float(base[0] - start_ns)
    return found


def _tapped(header: dict[str, Any], packets: Packets, ends: Ints, start_ns: int) -> Ints:
    """Arrival of each event by the tap, 0 where it did not see it; requests get the time at which they left."""
    arrival_ns = np.zeros(len(ends), np.int64)
    seen = ways(packets, header["tap"]["lines"])
    for entry, start in zip(header["requests"], _starts(header["requests"]), strict=True):
        if entry["line"] is None:
            continue
        answer, question = seen[entry["line"]]
        cut = slice(start, start + entry["events"])
        arrival_ns[cut] = answer.complete_ns(ends[cut])
        left_ns = question.begun_ns(np.array([entry["requested_at"]]))
        if left_ns[0]:
            sent_ns = int(_monotonic_ns(header, left_ns, start_ns)[0]) + start_ns
            if entry["intended_ns"] == entry["sent_ns"]:  # closed loop: due when it is sent
                entry["intended_ns"] = sent_ns
            entry["sent_ns"] = sent_ns
    return arrival_ns


def _unread_bytes(header: dict[str, Any], arrival_ns: Ints, user_ns: Ints, ends: Ints) -> int:
    """The most bytes that had arrived on a connection, to the end of an event, and were not read yet."""
    most = 0
    for entry, start in zip(header["requests"], _starts(header["requests"]), strict=True):
        cut = slice(start, start + entry["events"])
        if entry["events"]:
            read = np.append(ends[start], ends[cut])[
                np.searchsorted(user_ns[cut], arrival_ns[cut], side="right")
            ]
            most = max(most, int((ends[cut] - read).max()))
    return most


@dataclass(frozen=True, slots=True)
class _Built:
    request: Request
    t_s: Floats
    added: Ints
    lag_s: Floats
    merged: NDArray[np.bool_]
    counted: bool


def _request(entry: dict[str, Any], part: _Part, start: int, start_ns: int) -> _Built:
    cut = slice(start, start + entry["events"])
    counts, user_ns = part.counts[cut], part.user_ns[cut]
    bearing = counts != 0
    counted = not bool((counts < 0).any())
    t_s = part.t_s[cut][bearing]
    bearing_counts = counts[bearing]
    added = np.diff(bearing_counts, prepend=0) if counted else np.zeros(len(t_s), np.int64)
    users = user_ns[bearing]
    # Events of one read share its clock value; only the last of them is dated by it. What the kernel had joined
    # before it was read in two shares the stamp.
    shared = (users[1:] == users[:-1]) | (t_s[1:] == t_s[:-1])
    merged = np.append(shared, False) if len(users) else np.zeros(0, np.bool_)
    fields = dict(entry["fields"])
    for name in ("accept_histogram", "output_ids"):
        if fields.get(name) is not None:
            fields[name] = tuple(fields[name])
    request = Request(
        index=entry["index"],
        outcome=entry["outcome"],
        detail=entry["detail"],
        intended_s=(entry["intended_ns"] - start_ns) / 1e9 if entry["intended_ns"] else 0.0,
        sent_s=(entry["sent_ns"] - start_ns) / 1e9 if entry["sent_ns"] else None,
        first_token_s=float(t_s[0]) if len(t_s) else None,
        last_token_s=float(t_s[-1]) if len(t_s) else None,
        first_tokens=int(added[0]) if len(t_s) and counted else None,
        steps=len(t_s),
        **fields,
    )
    return _Built(request, t_s, added, part.lag_s[cut][bearing], merged, counted or not len(t_s))
