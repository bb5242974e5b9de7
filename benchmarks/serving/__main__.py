"""``tokgate.load`` beside ``sglang.bench_serving`` on the same servers.

    python -m benchmarks.serving --engine ENGINE.yaml --target DIR --draft DIR --out OUTDIR --budget-s 280

Starts a baseline and an EAGLE-3 server at the same time (profiles of ``perf_tests/profiles.yaml``: running
requests and captured batches up to 64 on both), and measures them one at a time at 1, 8 and 64 concurrent
requests, the two tools in turn on the same prompts, as many rounds as the time allows. The table has three lines
a metric: tokgate's figure; tokgate's data reckoned by bench_serving's definition; bench_serving's figure. The first
two differ by definition, the last two by what the clients did. Exits 0 only when every cell was measured by both
tools and the two servers are comparable.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.serving.comparison import Comparison
from benchmarks.serving.peer import Driver
from benchmarks.serving.table import table, void_notes
from tokgate.errors import TokgateError

PROFILES = Path(__file__).parents[2] / "perf_tests" / "profiles.yaml"


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    add = parser.add_argument
    add("--engine", required=True, help="engine file, or emulated:SCENARIO")
    add("--peer-engine", help="engine file whose environment runs bench_serving; default: --engine")
    add("--target", type=Path, required=True)
    add("--draft", type=Path, required=True)
    add("--tokenizer", type=Path, help="for bench_serving; default: --target")
    add("--out", type=Path, required=True)
    add("--budget-s", type=float, default=280)
    add("--profiles", type=Path, default=PROFILES)
    add(
        "--names", nargs="*", help="profiles to run; default: baseline and EAGLE-3 with graphs (CPU: without)"
    )
    add("--concurrency", type=int, nargs="*", default=[1, 8, 64])
    add("--rounds", type=int, default=3)
    add("--output-tokens", type=int, default=256)
    add("--prompt-tokens", type=int, default=128)
    add("--requests-floor", type=int, default=4, help="fewest requests of a run; else 2 per concurrent one")
    add("--vocabulary", type=int, help="ids stay below it, and below 8192 in any case")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    options = _options(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        comparison = Comparison(options)
    except TokgateError as error:
        print(f"benchmarks.serving: {error}", file=sys.stderr)
        return error.exit_code
    driver = Driver(comparison.peer, options.out / "bench_serving")
    try:
        comparison.start(driver)
        comparison.save()
        comparison.measure(driver)
    except TokgateError as error:
        comparison.notes.append(str(error))
    finally:
        driver.close()
        comparison.end()
        comparison.facts["whole_s"] = time.monotonic() - began
        comparison.save()
    for line in table(comparison.cells):
        print(line)
    comparison.notes += void_notes(comparison.cells)
    for note in [
        *(f"INCOMPARABLE: {o}" for o in comparison.facts.get("incomparable", ())),
        *comparison.notes,
    ][:6]:
        print(note)
    words = "all seen" if comparison.seen() else "NOT ALL SEEN"
    print(f"{words}; {time.monotonic() - began:.0f} s; {options.out}/serving.json")
    return 0 if comparison.seen() else 1


if __name__ == "__main__":
    sys.exit(main())
