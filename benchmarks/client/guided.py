"""Fuzz the client's parsers, guided by what they run through: ``python -m benchmarks.client.guided [--seconds N]``.

As :mod:`benchmarks.client.fuzz`, but the inputs are bred by Atheris towards code that was not reached yet. Atheris is
no requirement of tokgate: ``pip install atheris``. Ends with Atheris' own exit code, above 0 on a difference.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import sys
from pathlib import Path


def main() -> int:
    """Command line; returns the exit code when there is no Atheris, else ends the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client.guided", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--corpus", type=Path, help="folder of inputs that is read and added to")
    options = parser.parse_args()
    try:
        atheris = importlib.import_module("atheris")
    except ImportError:
        print("Atheris is not installed: pip install atheris", file=sys.stderr)
        return 3
    # What is to be guided by must be imported by Atheris first.
    with atheris.instrument_imports(include=["tokgate.load"]):
        fuzz = importlib.import_module("benchmarks.client.fuzz")
    with fuzz.compiled_sweep() as library:
        trial = fuzz.Trial(library)

        def one(data: bytes) -> None:
            """The first bytes say how to cut and what to ask; the rest is the response, most often one with a head."""
            provider = atheris.FuzzedDataProvider(data)
            ids, headed, chunked = (provider.ConsumeBool() for _ in range(3))
            places = provider.ConsumeIntListInRange(provider.ConsumeIntInRange(0, 8), 0, 4000)
            rest = provider.ConsumeBytes(sys.maxsize)
            if chunked:
                rest = b"".join(fuzz.chunk(part + b"\n\n") for part in rest.split(b"\n\n") if part)
            response = fuzz.HEAD + rest if headed else rest
            at = sorted({0, len(response), *(place for place in places if place < len(response))})
            trial.outcome(response, [response[a:b] for a, b in itertools.pairwise(at)], ids)

        words = [f"-max_total_time={options.seconds}", "-max_len=4096", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], *words, *([str(options.corpus)] if options.corpus else [])], one)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
