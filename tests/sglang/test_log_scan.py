"""The fast scan says exactly what the reader says, line for line."""

from __future__ import annotations

import errno
import gzip
import itertools
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokgate.errors import UsageFault
from tokgate.sglang import log_events as ev
from tokgate.sglang.log import read_events
from tokgate.sglang.log_columns import Columns
from tokgate.sglang.log_scan import BLOCK_BYTES, scan, scan_file, seconds_of

SAMPLES = Path(__file__).parent / "samples"
LOGS = sorted(SAMPLES.glob("*/*.log"))

Row = tuple[float | None, str | None, bool, int | None, float | None, float | None, bool | None]


def rows_of_reader(raw: bytes) -> tuple[list[Row], list[ev.Event]]:
    rows: list[Row] = []
    others: list[ev.Event] = []
    for event in read_events([raw]):
        row = row_of(event)
        if row is None:
            others.append(without_time(event))
        else:
            rows.append(row)
    return rows, others


def row_of(event: ev.Event) -> Row | None:
    where = (seconds_of(event.time), event.rank)
    if isinstance(event, ev.DecodeBatch):
        return (*where, True, event.running, event.gen_tok_s, event.accept_length, event.graph)
    if isinstance(event, ev.PrefillBatch):
        return (*where, False, event.running, None, None, event.graph)
    return None


def without_time(event: ev.Event) -> ev.Event:
    """The time of a line without header is the last header's, which the scan may have skipped."""
    return replace(event, time=None)


def rows_of_scan(blocks: Iterable[bytes]) -> tuple[list[Row], list[ev.Event], int]:
    rows: list[Row] = []
    others: list[ev.Event] = []
    fast = 0
    for item in scan(blocks):
        if isinstance(item, Columns):
            fast += len(item)
            rows += [columns_row(item, index) for index in range(len(item))]
            continue
        row = row_of(item)
        if row is None:
            others.append(without_time(item))
        else:
            rows.append(row)
    return rows, others, fast


def columns_row(columns: Columns, at: int) -> Row:
    accept, rate = float(columns.accept_length[at]), float(columns.rate_tok_s[at])
    return (
        float(columns.time_s[at]),
        columns.ranks[columns.rank[at]] or None,
        bool(columns.decode[at]),
        int(columns.running[at]),
        None if math.isnan(rate) else rate,
        None if math.isnan(accept) else accept,
        bool(columns.graph[at]),
    )


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_scan_equals_reader_on_real_logs(path: Path) -> None:
    raw = path.read_bytes()
    rows, others, fast = rows_of_scan([raw])
    assert (rows, others) == rows_of_reader(raw)
    assert fast == len(rows)


DECODE = st.builds(
    lambda rank, running, token, accept, device, graph, rate: (
        f"[2026-11-29 12:41:{running % 60:02}{rank}] Decode batch, #running-req: {running}, #token: {token}, "
        f"token usage: 0.10, {accept}{device} graph: {graph}, gen throughput (token/s): {rate:.2f}, "
        f"#queue-req: {running}\n"
    ),
    st.sampled_from(["", " TP0", " DP1 TP3"]),
    st.integers(0, 99999),
    st.integers(0, 10**7),
    st.sampled_from(["", "accept len: 2.95, accept rate: 0.65, ", "accept len: 10.00, accept rate: 1.00, "]),
    st.sampled_from(["cuda", "cpu", "npu"]),
    st.booleans(),
    st.floats(0, 999999),
)
OTHER = st.sampled_from(
    [
        "[2026-11-29 12:41:26] Prefill batch, #new-seq: 1, #new-token: 4, #cached-token: 0, "
        "token usage: 0.00, #running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, "
        "input throughput (token/s): 7\n",
        "[2026-11-29 12:41:26] Prefill batch, #new-seq: 1, #new-token: 4, #cached-token: 0, "
        "token usage: 0.00, #running-req: 2, #queue-req: 0, input throughput (token/s): 7.01, "
        "cuda graph: True\n",
        '[2026-11-29 12:41:26] INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 200 OK\n',
        "[2026-11-29 12:41:26] INFO:     Uvicorn running on http://127.0.0.1:30103\n",
        "[2026-11-29 12:41:26 TP0] Scheduler hit an exception: Traceback (most recent call last):\n",
        '  File "a.py", line 1, in f\n',
        "RuntimeError: boom\n",
        "\n",
        "Capturing batches (bs=8):  12%|x | 1/8 [00:03<00:27]\r",
        "[2026-11-29 12:41:26 TP1] Decode batch, #running-req: [2026-11-29 12:41:26] Load weight begin\n",
        "x: UserWarning: is deprecated\n",
        "\x1b[33m[2026-11-29 12:41:26] \x1b[0mDecode batch, #running-req: 3, #token: 1, token usage: 0.00, "
        "cuda graph: True, gen throughput (token/s): 5.00, #queue-req: 0\n",
        "[2026-99-29 12:41:26] Decode batch, #running-req: 3, #token: 1, token usage: 0.00, "
        "cuda graph: True, gen throughput (token/s): 5.00, #queue-req: 0\n",
    ]
)


@settings(max_examples=50, deadline=None)
@given(st.lists(DECODE | OTHER, max_size=30), st.lists(st.integers(0, 4000), max_size=6))
def test_scan_equals_reader_on_any_mixture(lines: list[str], cuts: list[int]) -> None:
    raw = "".join(lines).encode()
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    blocks = [raw[begin:end] for begin, end in itertools.pairwise(edges)]
    rows, others, _ = rows_of_scan(blocks)
    expected_rows, expected_others = rows_of_reader(raw)
    assert others == expected_others
    # Unusual statistics lines come as events, before the columns of their block.
    assert sorted(map(repr, rows)) == sorted(map(repr, expected_rows))


def test_gzip_utf16_and_truncated_gzip(tmp_path: Path) -> None:
    path = LOGS[0]
    raw = path.read_bytes()
    packed = tmp_path / "server.log.gz"
    packed.write_bytes(gzip.compress(raw))
    assert [*scan_file(packed)] and rows_of_file(packed) == rows_of_file(path)
    wide = tmp_path / "wide.log"
    wide.write_bytes(raw.decode().encode("utf-16"))
    assert rows_of_file(wide) == rows_of_file(path)
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(raw)[:-1500])
    some, told = rows_of_file(cut)
    assert 0 < len(some) < len(rows_of_file(path)[0])
    assert told[-1] == ev.Suspect(text="the gzip stream is cut short: read as far as it goes")
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(gzip.compress(raw)[:-8] + bytes(8))
    assert "damaged" in rows_of_file(damaged)[1][-1].text  # type: ignore[attr-defined]


def rows_of_file(path: Path) -> tuple[list[Row], list[ev.Event]]:
    rows: list[Row] = []
    others: list[ev.Event] = []
    for item in scan_file(path):
        if isinstance(item, Columns):
            rows += [columns_row(item, index) for index in range(len(item))]
        elif (row := row_of(item)) is not None:
            rows.append(row)
        else:
            others.append(without_time(item))
    return rows, others


def test_an_absent_log_is_a_clear_fault(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match=r"cannot read log .*nothing.log: No such file"):
        list(scan_file(tmp_path / "nothing.log"))


def test_a_file_of_nothing_but_a_hole_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "hole.log"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    if path.stat().st_blocks:
        pytest.skip("this file system keeps no holes")
    assert [*scan_file(path)] == []


def test_a_log_that_was_emptied_under_its_server_is_read_behind_the_hole(tmp_path: Path) -> None:
    """What logrotate's copytruncate leaves: zeros up to where the server went on writing."""
    path = tmp_path / "server.log"
    content = LOGS[0].read_bytes()
    begun = content.index(b"\n", 1 << 12) + 1
    with path.open("wb") as file:
        file.write(content[:begun])
        file.seek(1 << 31)
        file.write(content)
    rows, others = rows_of_file(path)
    whole = tmp_path / "whole.log"
    whole.write_bytes(content[:begun] + content)
    assert (rows, others) == rows_of_file(whole)


@pytest.mark.parametrize("told", [errno.EINVAL, errno.EOPNOTSUPP])
def test_where_holes_are_not_told_all_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: int
) -> None:
    wanted = rows_of_file(LOGS[0])
    monkeypatch.setattr(os, "lseek", raises(OSError(told, "not told")))
    assert rows_of_file(LOGS[0]) == wanted


def raises(error: OSError) -> Callable[..., int]:
    def call(*_: object) -> int:
        raise error

    return call


def test_a_megabyte_without_newline_is_bounded() -> None:
    blocks = [b"x" * BLOCK_BYTES] * 20 + [b"\n" + LOGS[0].read_bytes()]
    rows, _, _ = rows_of_scan(blocks)
    assert rows == rows_of_reader(LOGS[0].read_bytes())[0]
