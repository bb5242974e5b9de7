"""Long logs: memory does not grow with the file. Speed is measured by hand, not asserted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokgate.report.explain_series import MAX_ROWS, SeriesBuilder
from tokgate.sglang.log_scan import scan

LINE = (
    "[2026-11-{day:02} {hour:02}:{minute:02}:{second:02} TP0] Decode batch, #running-req: 8, #token: {step}, "
    "token usage: 0.10, accept len: 2.50, accept rate: 0.50, cuda graph: True, "
    "gen throughput (token/s): {rate:.2f}, #queue-req: 0\n"
)


def lines(count: int) -> bytes:
    return "".join(
        LINE.format(
            day=1 + step // 86400,
            hour=step // 3600 % 24,
            minute=step // 60 % 60,
            second=step % 60,
            step=step,
            rate=600 + step % 100,
        )
        for step in range(count)
    ).encode()


def test_more_rows_than_kept_are_thinned_evenly() -> None:
    block = lines(20_000)
    builder = SeriesBuilder()
    blocks = 2 * MAX_ROWS // 20_000 + 3
    for item in scan([block]):
        for _ in range(blocks):
            builder.add(item)  # type: ignore[arg-type]
    series = builder.series()
    assert builder.decode_lines == blocks * 20_000
    assert series.stride == 4
    assert MAX_ROWS // 2 < len(series) <= MAX_ROWS
    # Every fourth of rates that run through 600..699: the mean is kept.
    assert float(series.rate_tok_s.mean()) == pytest.approx(649.5, abs=2)


@pytest.mark.slow
def test_peak_memory_is_bounded(tmp_path: Path) -> None:
    peaks = []
    part = lines(80_000)
    for repeats in (1, 8):
        log = tmp_path / f"{repeats}.log"
        log.write_bytes(part * repeats)
        # Not ru_maxrss: that begins with the memory of who started the process, which is this one's.
        program = (
            "import re, sys; from tokgate.cli import run; "
            f"run(['explain', {str(log)!r}]); "
            "print(re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read())[1], file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert f"{80_000 * repeats} lines" in done.stdout
        peaks.append(int(done.stderr.split()[-1]) / 1024)
    # 120 MB more log, and 40 bytes a kept row: 560,000 rows are 22 MB, concatenated once.
    assert peaks[1] - peaks[0] < 80
