"""Cuts a run of the matrix down to what judging it again takes: an asset of the test suite, without paths of a machine.

    python -m benchmarks.speculation.record RUN ASSET [--without PROFILE-WORKLOAD,...]

Writes ``run.json``, ``samples.json`` (one list; a request's output ids become one number that stands for all of
them), ``facts.json`` (captures and the hybrid line from each server's log, the memory's bandwidth as the run says it)
and ``traces/<profile>-<workload>.json.gz`` (operations of the device, the calls that launched them, labelled spans).
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from tokgate.gate.facts import read_facts
from tokgate.gate.results import find_run, read_run, read_verdicts
from tokgate.load.sample import Sample, read_samples
from tokgate.sglang.profiling import trace_files
from tokgate.sglang.trace_spans import label
from tokgate.trace.timeline import CALL_WORDS, CALLS, ON_DEVICE, SPANS

_BANDWIDTH = re.compile(r"a step at (\d+) GB/s")


def cut(run: Path, asset: Path, without: Collection[str] = ()) -> None:
    """Write the asset.

    Args:
        without: cases whose traces are left out, ``<profile>-<workload>``.
    """
    asset.mkdir(parents=True, exist_ok=True)
    facts = {key: value for key, value in read_run(run).items() if key != "host_warnings"}
    _write(asset / "run.json", facts)
    samples = [sample_of(sample) for sample in read_samples(run / "samples")]
    _write(asset / "samples.json", samples)
    _write(asset / "facts.json", {"servers": dict(servers(run)), "bandwidth_gb_s": bandwidth(run)})
    for folder in sorted((run / "traces").glob("*/*")):
        if f"{folder.parent.name}-{folder.name}" in without:
            continue
        for number, file in enumerate(trace_files(folder)):
            rank = f"-rank{number}" if number else ""
            target = asset / "traces" / f"{folder.parent.name}-{folder.name}{rank}.json.gz"
            target.parent.mkdir(exist_ok=True)
            text = json.dumps(slim(json.loads(gzip.decompress(file.read_bytes()))), separators=(",", ":"))
            target.write_bytes(gzip.compress(text.encode(), mtime=0))


def sample_of(sample: Sample) -> dict[str, Any]:
    """A Sample's JSON, with one number for the output of a request."""
    data = sample.to_json()
    for request in data["requests"]:
        if ids := request["output_ids"]:
            request["output_ids"] = [zlib.crc32(json.dumps(ids).encode())]
    return json.loads(json.dumps(data))  # type: ignore[no-any-return]


def servers(run: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Profile -> what its log tells."""
    for log in sorted((run / "logs").glob("*.log")):
        found = read_facts(log, {})
        yield (
            log.stem.rpartition("-")[0],
            {
                "captures": found.captures and {kind: list(ranks) for kind, ranks in found.captures.items()},
                "hybrid_line": found.hybrid_line,
            },
        )


def bandwidth(run: Path) -> int | None:
    """Of the memory, as measured in the run, GB/s; ``None`` when no verdict has it."""
    lines = (line for verdict in read_verdicts(run) for line in verdict.body)
    found = next(filter(None, map(_BANDWIDTH.search, lines)), None)
    return None if found is None else int(found[1])


def slim(trace: dict[str, Any]) -> dict[str, Any]:
    """What :mod:`tokgate.trace.timeline` reads of a trace; times from its first event, ties numbered anew."""
    kept = [event for event in trace["traceEvents"] if _wanted(event)]
    began = min((event["ts"] for event in kept), default=0.0)
    ties: dict[int, int] = {}
    gpus = [{"id": gpu.get("id"), "name": gpu.get("name")} for gpu in trace.get("deviceProperties", [])]
    return {
        "deviceProperties": gpus,
        "traceEvents": [_event(event, began, ties) for event in kept],
    }


def _wanted(event: dict[str, Any]) -> bool:
    kind, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
    if event.get("ph") != "X":
        return False
    if kind in SPANS:
        return label(kind, name) is not None
    return kind in ON_DEVICE or (kind in CALLS and any(word in name.lower() for word in CALL_WORDS))


def _event(event: dict[str, Any], began: float, ties: dict[int, int]) -> dict[str, Any]:
    told, args = event.get("args", {}), dict[str, Any]()
    if (tie := told.get("correlation")) is not None:
        args["correlation"] = ties.setdefault(tie, len(ties))
    if "device" in told:
        args["device"] = told["device"]
    kept: dict[str, Any] = {key: event[key] for key in ("ph", "cat", "name", "tid", "dur") if key in event}
    return {**kept, "pid": 0, "ts": round(event["ts"] - began, 3), "args": args}


def _write(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("asset", type=Path)
    parser.add_argument("--without", default="", help="traces to leave out: PROFILE-WORKLOAD,...")
    given = parser.parse_args()
    cut(find_run(given.run.parent, given.run.name), given.asset, given.without.split(","))
    return 0


if __name__ == "__main__":
    sys.exit(main())
