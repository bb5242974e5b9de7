"""How ``python -m benchmarks.client`` judges its rows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.client import lag
from benchmarks.client import peers as client_peers
from benchmarks.client.experiments import Bench, cumulative
from benchmarks.client.rows import Row, document, settled, table
from benchmarks.client.truth import read_log
from tokgate.errors import HostFault, LoadFault


def runs_of(*values: float | None):
    left = iter(values)
    return lambda: [Row("row", next(left), "%", 0.5)]


def test_a_good_row_is_measured_once() -> None:
    assert settled(runs_of(0.4)) == [Row("row", 0.4, "%", 0.5)]


def test_a_missed_row_is_repeated_twice_and_the_median_counts() -> None:
    (row,) = settled(runs_of(9.0, 0.1, 0.2))
    assert (row.value, row.missed, row.note) == (0.2, False, "median of 3")
    (row,) = settled(runs_of(9.0, 0.1, 8.0))
    assert row.missed and "MISSED" in table([row])


def test_where_late_reads_stand_is_shown(capsys, monkeypatch, cc) -> None:
    monkeypatch.setattr("sys.argv", ["lag", "--streams", "2", "--tokens", "8", "--runs", "1"])
    assert lag.main() == 0
    shown = capsys.readouterr().out
    assert shown.startswith("lag p99 ") and all(
        f"{place} p99 " in shown for place in ("first", "between", "last")
    )
    assert " of 1 runs flagged client_lag" in shown


def test_what_was_not_run_is_neither_good_nor_bad() -> None:
    row = Row("CPU / sglang-bench", None, "x", 0.8)
    assert not row.missed and settled(lambda: [row]) == [row]
    assert "not run" in table([row]) and " ok" not in table([row])


def test_an_absent_peer_is_not_run(truth_binary: Path, tmp_path: Path) -> None:
    places = client_peers.Places(tmp_path, None)
    assert [places.python(name) for name in client_peers.PEERS] == [None] * 4
    cpus = tuple(os.sched_getaffinity(0))
    bench = Bench(truth_binary, truth_binary, cpus, cpus, places, tokens=20)
    rows = cumulative(bench)
    assert rows[0].value is not None and rows[0].value > 0
    assert rows[1].value is None


def test_a_peer_that_fails_is_reported_with_its_words(tmp_path: Path) -> None:
    program = tmp_path / "aiperf" / "bin" / "aiperf"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho out of cheese >&2\nexit 4\n")
    program.chmod(0o755)
    program.with_name("python").touch()
    with pytest.raises(HostFault) as caught:
        client_peers.run(
            "aiperf",
            client_peers.Places(tmp_path, None),
            client_peers.Load(1, 1, 30),
            sorted(os.sched_getaffinity(0)),
        )
    assert "exit code 4" in caught.value.headline and caught.value.details == ("out of cheese",)


def test_an_empty_log_is_no_truth(truth) -> None:
    with truth() as url, pytest.raises(LoadFault, match="log is empty"):
        read_log(int(url.rpartition(":")[2]))


def test_the_table_goes_into_the_page_and_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- client: begin -->\nold\n<!-- client: end -->\nafter\n")
    monkeypatch.setattr("benchmarks.client.rows.PAGE", page)
    rows = [Row("good", 0.1, "%", 0.5, "why"), Row("bad", 3.0, "x", 1.25), Row("peer", None, "us")]
    for _ in range(2):
        document(rows, "some host", "2026-11-29")
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert text.count("| good | 0.1 % | <= 0.5 % | why |") == 1
    assert "| bad | 3 x | <= 1.25 x | MISSED |" in text and "| peer | not run |" in text
