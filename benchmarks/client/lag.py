"""How late the client reads: where in their streams the late events stand. ``python -m benchmarks.client.lag``.

Against the truth server, whose streams all begin and end together. For each run it prints the 99th percentile of lag,
its bound, why the run is void, and by place (the first event of a stream, the last, those between) p99 and the
share of the latest hundredth. A place that is over-represented is the client's doing; between them it is the machine's.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.client.experiments import Bench
from benchmarks.client.peers import Places
from benchmarks.client.truth import compiled, truth_server
from tokgate.errors import TokgateError
from tokgate.load.measurement import Measurement


def places(found: Measurement) -> Iterator[str]:
    """A description of each place's lag."""
    line = found.timeline
    first = np.append(True, line.owner[1:] != line.owner[:-1])
    last = np.append(first[1:], True)
    dated = ~line.merged & ~np.isnan(line.lag_s)
    lag_ms = line.lag_s * 1e3
    late = dated & (lag_ms >= np.percentile(lag_ms[dated], 99))
    for name, chosen in (("first", first), ("between", ~first & ~last), ("last", last & ~first)):
        if not (dated & chosen).any():
            yield f"{name} p99 unknown (each was read with a later one)"
            continue
        p99_ms = np.percentile(lag_ms[dated & chosen], 99)
        yield f"{name} p99 {p99_ms:.2f} ms ({(late & chosen).sum() / late.sum():.0%} of the latest)"


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client.lag", description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=4)
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    flagged = 0
    with tempfile.TemporaryDirectory(prefix="tokgate-bench-") as folder:
        try:
            server = compiled("truth_server", Path(folder))
            bench = Bench(server, server, (cpus[0],), (cpus[-1],), Places.find(None, None), options.tokens)
            for _ in range(options.runs):
                with truth_server(bench.truth, bench.server_cpus) as port:
                    found = bench.ours(port, options.streams, options.tokens)
                lags = [v for v in found.void if v.cause == "client_lag"]
                flagged += bool(lags)
                bound = f"over {lags[0].bound * 1e3:.2f}" if lags else "within its bound"
                voids = ", ".join(v.cause for v in found.void) or "none"
                lag_ms = (found.audit.lag_p99_s or np.nan) * 1e3
                print(
                    f"lag p99 {lag_ms:.2f} ms, {bound}; {'; '.join(places(found))}; void: {voids}", flush=True
                )
        except TokgateError as error:
            print(f"benchmarks.client.lag: {error}", file=sys.stderr)
            return error.exit_code
    print(f"{flagged} of {options.runs} runs flagged client_lag; load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
