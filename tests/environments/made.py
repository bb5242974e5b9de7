"""What tests of engines by version, commit, folder and wheel have in common."""

from __future__ import annotations

import subprocess

from tokgate.config.engine import load_engine
from tokgate.environments import installer
from tokgate.environments.engine import MadeEngine

PYTHON = installer.running()


def silent(_: str) -> None:
    """Takes what is said."""


def answer(made: MadeEngine) -> str:
    engine = load_engine(made.engine_file)
    command = [engine.python, "-c", "import sglang; print(sglang.ANSWER)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
