"""Is the measuring client right, and what does it cost? ``python -m benchmarks.client [--quick]``.

Prints a table of rows; exits 1 when a row with a limit is missed. A missed row's experiment is repeated
twice and the median counts. What is not installed is 'not run', which is neither good nor bad.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.client.experiments import Bench, experiments
from benchmarks.client.peers import PEERS, Places, install
from benchmarks.client.rows import document, table
from benchmarks.client.truth import compiled
from tokgate import __version__
from tokgate.errors import TokgateError


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the main rows, under 50 s")
    parser.add_argument(
        "--peers", type=Path, help="folder with environments of AIPerf and GuideLLM, outside the repository"
    )
    parser.add_argument(
        "--sglang", type=Path, metavar="ENGINE.yaml", help="SGLang's clients; default: tokgate env make cpu"
    )
    parser.add_argument(
        "--install-peers", nargs="*", metavar="NAME", help=f"install into --peers: {', '.join(PEERS)}"
    )
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--write", action="store_true", help="also write the table into the docs")
    options = parser.parse_args()
    if options.install_peers is not None:
        if options.peers is None:
            parser.error("--install-peers needs --peers FOLDER")
        for name in options.install_peers or [n for n in PEERS if PEERS[n].packages]:
            if name not in PEERS:
                parser.error(f"no peer '{name}'; known: {', '.join(PEERS)}")
            try:
                install(name, options.peers)
                print(f"{name}: installed")
            except TokgateError as error:
                print(f"{name}: {error}")
        return 0
    cpus, before = sorted(os.sched_getaffinity(0)), os.getloadavg()[0]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tokgate-bench-") as folder:
        try:
            bench = Bench(
                truth=compiled("truth_server", Path(folder)),
                reader=compiled("raw_reader", Path(folder)),
                server_cpus=(cpus[0],),
                client_cpus=(cpus[-1],),
                peers=Places.find(options.peers, options.sglang),
                tokens=300 if options.quick else 500,
            )
            rows = experiments(bench, options.quick)
        except TokgateError as error:
            print(f"benchmarks.client: {error}", file=sys.stderr)
            return error.exit_code
    python, kernel = platform.python_version(), platform.release()
    host = f"{platform.machine()}, {len(cpus)} CPUs, Linux {kernel}, Python {python}"
    load = os.getloadavg()[0]
    print(table(rows))
    print(f"tokgate {__version__}; {host}; load {load:.1f}; {time.monotonic() - began:.0f} s")
    if options.json:
        facts = {"tokgate": __version__, "host": host, "load": load, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    if options.write:
        today = datetime.date.today().isoformat()
        document(
            rows,
            f"tokgate {__version__}; {host}; load {before:.1f} before, {load:.1f} after (its own included)",
            today,
        )
    missed = sum(row.missed for row in rows)
    if missed:
        print(f"{missed} row{'s' if missed > 1 else ''} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
