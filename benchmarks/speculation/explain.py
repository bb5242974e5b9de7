"""How long `tokgate explain` takes over large files, and how much memory: a log of 500 MB, a trace of 200 MB.

    python -m benchmarks.speculation.explain [--write]

The log is a recorded one of SGLang 0.5.15.post1 (EAGLE-3 on an H200) whose lines of service are repeated with
running clocks, plain and gzip; the trace is that of an H200 with Python frames repeated around it. CPU seconds and
peak memory are those of a process of its own, so other work on the machine tells little. ``--write`` puts the
table into docs/how-to/explain_a_log.md.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.page import print_or_put
from tokgate.trace.events import EventStream

ROOT = Path(__file__).parents[2]
LOG = ROOT / "tests/sglang/samples/0.5.15.post1/eagle3-graphs-with-suspend.log"
TRACE = ROOT / "tests/assets/traces/0.5.15.post1-hyb-decode-c1.trace.json.gz"
DOCUMENT = ROOT / "docs/how-to/explain_a_log.md"
BEGIN, END = "<!-- explain: begin -->", "<!-- explain: end -->"
LOG_MB, TRACE_MB = 500, 200
PROGRAM = (
    "import resource, sys; from tokgate.cli import run; code = run(['explain', sys.argv[1]]); "
    "used = resource.getrusage(resource.RUSAGE_SELF); "
    "print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)"
)
FRAME = (
    '{{"ph":"X","cat":"python_function","name":"module.py({0}): call_{0}","pid":1,"tid":1,"ts":{0},"dur":1}}'
)


@dataclass(frozen=True, slots=True)
class Row:
    """One file, explained once."""

    what: str
    mb: float
    on_disk_mb: float
    cpu_s: float
    peak_mib: float


def long_log(path: Path, *, packed: bool) -> None:
    """The start as recorded, then its lines of service again and again, a second later each."""
    lines = LOG.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    service = [line for line in lines if " batch, #" in line or "HTTP/1.1" in line]
    with gzip.open(path, "wt", 1, encoding="utf-8") if packed else path.open("w", encoding="utf-8") as file:
        file.write("".join(lines))
        size = second = 0
        while size < LOG_MB * 1_000_000:
            day, rest = divmod(second, 86400)
            stamp = f"[2026-12-{1 + day % 28:02} {rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
            block = "".join(re.sub(r"^\[[\d\- :]{19}", stamp, line) for line in service)
            file.write(block)
            size += len(block)
            second += 1


def long_trace(path: Path) -> None:
    """The recorded events between Python frames."""
    frames = ",\n".join(FRAME.format(number) for number in range(5000))
    stream = EventStream(TRACE)
    events = ",\n".join(json.dumps(event) for event in stream)
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        file.write('{"traceEvents": [\n')
        for _ in range(TRACE_MB * 1_000_000 // len(frames)):
            file.write(frames + ",\n")
        file.write(events + "\n]}\n")


def explained(what: str, mb: float, path: Path) -> Row:
    """Explain a file in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    cpu_s, peak_kib = map(float, done.stderr.split()[-2:])
    return Row(what, mb, path.stat().st_size / 1e6, cpu_s, peak_kib / 1024)


def rows(folder: Path) -> list[Row]:
    """All files, made and explained one after the other."""
    found = []
    for what, packed in (("log", False), ("log, gzip", True)):
        path = folder / f"server.log{'.gz' if packed else ''}"
        long_log(path, packed=packed)
        found.append(explained(what, LOG_MB, path))
        path.unlink()
    path = folder / "frames-TP-0.trace.json.gz"
    long_trace(path)
    found.append(explained("trace with Python frames, gzip", TRACE_MB, path))
    return found


def table(found: list[Row]) -> str:
    """As Markdown."""
    lines = ["| file | MB | on disk, MB | CPU s | peak MiB |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {row.what} | {row.mb:.0f} | {row.on_disk_mb:.0f} | {row.cpu_s:.1f} | {row.peak_mib:.0f} |"
        for row in found
    ]
    return "\n".join(lines)


def measured() -> str:
    """Make the files, explain them, and say how it went, as Markdown."""
    with tempfile.TemporaryDirectory(prefix="tokgate-explain-") as folder:
        return table(rows(Path(folder)))


if __name__ == "__main__":
    sys.exit(print_or_put(__doc__, DOCUMENT, BEGIN, END, measured))
