"""How ``python -m benchmarks.client`` judges its rows."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from benchmarks.client import lag
from benchmarks.client import peers as client_peers
from benchmarks.client.experiments import Bench, cumulative
from benchmarks.client.rows import Row, document, settled, table
from benchmarks.client.truth import Truth, read_log
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


def sent(monkeypatch, held_up_us: dict[int, int]) -> Truth:
    """What is read of a log of 201 sends, 5 ms apart; the tenth and the twentieth gap are 1 ms longer."""
    lines, at_ns = [], 0
    for number in range(201):
        took_ns = 40_000 + 1000 * held_up_us.get(number, 0)
        lines.append(f"1 {number} {number + 1} {at_ns} 0 {at_ns + took_ns}")
        at_ns += 6_000_000 if number in (9, 19) else 5_000_000
    answer = io.BytesIO("\n".join(lines).encode())
    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **kwargs: answer)
    return read_log(0)


def test_a_send_that_was_held_up_is_known_no_better_than_that(monkeypatch) -> None:
    """The clock was read before it; the event may have left as late as it returned."""
    known = sent(monkeypatch, {})
    assert known.itl_p99_ms == pytest.approx((5.01, 5.01))
    assert known.itl_error(5.01) == pytest.approx(0)
    assert known.itl_error(5.06) == pytest.approx(0.01, rel=0.01) == known.itl_error(4.96)
    held_up = sent(monkeypatch, dict.fromkeys((50, 60, 70), 300))
    assert held_up.itl_p99_ms == pytest.approx((5.01, 5.307), rel=1e-3)
    assert held_up.itl_error(5.2) == 0
    assert held_up.itl_error(5.5) == pytest.approx(0.036, rel=0.02)
    assert held_up.itl_error(4.96) == pytest.approx(0.01, rel=0.01)
    assert sent(monkeypatch, dict.fromkeys((50, 60, 70), 20)).itl_p99_ms == known.itl_p99_ms


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
