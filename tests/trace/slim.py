"""Makes a small asset of a real trace: everything but events that the reader has no use for.

    python -m tests.trace.slim TRACE.json.gz tests/assets/traces/NAME.trace.json.gz [MILLISECONDS]

With MILLISECONDS, of the last so many alone.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

from tokgate.sglang.trace_spans import label
from tokgate.trace.events import EventStream


def main(source: str, target: str, last_ms: str = "inf") -> None:
    stream = EventStream(Path(source))
    kept = []
    for event in stream:
        category = event.get("cat")
        if category in {"cpu_op", "ac2g", "overhead", "fwdbwd"}:
            continue
        if category == "python_function" and label("python_function", str(event["name"])) is None:
            continue
        if category == "kernel":
            event["args"] = {key: event["args"][key] for key in ("device", "stream", "correlation")}
        kept.append(event)
    timed = [event for event in kept if event.get("ph") == "X" and event.get("cat") != "Trace"]
    first = max(float(event["ts"]) for event in timed) - 1e3 * float(last_ms)
    kept = [event for event in timed if float(event["ts"]) >= first]
    document = {**stream.header, "traceName": "", "traceEvents": kept}
    document.pop("distributedInfo", None)
    text = json.dumps(document, separators=(",", ":"))
    Path(target).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
