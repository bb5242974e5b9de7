"""Regenerate the recordings from the real CPU engines: ``python -m tests.contract.record``.

Each recording is one launch; its folder is replaced whole. Needs the environments that
``tokgate env make cpu`` and ``tokgate env make cpu-0.5.15.post1`` make, and some minutes.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.contract.launches import PROFILES, launch_spec, pair
from tests.contract.transcript import Transcript, take
from tokgate.config.engine import resolve_engine
from tokgate.environments import root
from tokgate.errors import TokgateError
from tokgate.server.launch import start

FOLDER = Path(__file__).with_name("recordings")
PRESET, ACCEPT_LENGTH = "tiny", 2.5
# Folder -> environment, profile. 0.5.15.post1 has no speculation on CPU.
SOURCES = {
    "cpu-0.5.23/baseline": ("cpu", "baseline"),
    "cpu-0.5.23/eagle3": ("cpu", "eagle3"),
    "cpu-0.5.15.post1/baseline": ("cpu-0.5.15.post1", "baseline"),
}
RECORDINGS = tuple(SOURCES)


@cache
def recorded(name: str) -> Transcript:
    """A stored recording."""
    return Transcript.load(FOLDER / name)


def record(name: str, scratch: Path) -> None:
    """Launch the engine, question it, store what it said."""
    environment, profile = SOURCES[name]
    engine = resolve_engine(environment, root())
    model = scratch / PRESET
    pair(PRESET, model, ACCEPT_LENGTH)
    print(f"{name}: starting SGLang {engine.version}", flush=True)
    with start(launch_spec(engine, PROFILES[profile], model, scratch / name)) as server:
        transcript = take(server, PRESET, ACCEPT_LENGTH)
    places = [
        (str(Path(engine.python).parent.parent), "/opt/sglang"),
        *((path, "/opt/tokgate") for path in engine.pythonpath),
        (str(model), f"/models/{PRESET}"),
    ]
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    transcript.save(FOLDER / name, places)
    print(f"{name}: {sum(path.stat().st_size for path in (FOLDER / name).iterdir()) / 1e3:.0f} kB")


def main() -> int:
    """Record all, or those named on the command line."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in sys.argv[1:] or RECORDINGS:
            try:
                record(name, Path(scratch))
            except TokgateError as error:
                print(f"{name}: {error}", file=sys.stderr)
                return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
