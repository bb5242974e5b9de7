"""Runs SGLang's ``bench_serving`` in the engine's own environment, as often as asked, importing it once.

    PYTHON benchmarks/serving/driver.py [LAUNCHER.py]

Of an environment whose engine starts through a file of its own (the CPU engine's), that file is loaded first,
since it mends what the imports need. It imports the module (10 to 60 s, mostly torch), prints
``ready VERSION DATA_SETS``, and for each line of standard input, ``{"argv": [...], "log": PATH}``, forks, lets the
child run ``bench_serving``'s own command line on these arguments, and prints ``done EXIT_CODE CPU_S WALL_S``. Each
run is a process of its own, as it would be by hand. It ends with its standard input. It runs where
SGLang is installed, so it imports nothing of tokgate.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import sys
import time
import traceback
import types
from importlib.metadata import version

NAMES = ("sglang.benchmark.serving", "sglang.bench_serving")  # since 0.5.12, and before


def load() -> object:
    """The module with ``cli_main``, under its name of this version."""
    if importlib.util.find_spec("datasets") is None:
        # Imported for one data set that is not asked for (MMMU); servers do without the package.
        absent = types.ModuleType("datasets")
        absent.load_dataset = None  # type: ignore[attr-defined]
        sys.modules["datasets"] = absent
    for name in NAMES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in {"sglang.benchmark", "sglang.benchmark.serving"}:
                raise
            continue
        if hasattr(module, "cli_main"):
            return module
    raise SystemExit(f"no {' or '.join(NAMES)} with a command line in this environment")


def data_sets() -> list[str]:
    """Names of the data sets that it knows; none where they are not listed."""
    try:
        return sorted(importlib.import_module("sglang.benchmark.datasets").DATASET_MAPPING)
    except (ModuleNotFoundError, AttributeError):
        return []


def child(module: object, argv: list[str], log: str) -> None:
    """One run; never returns."""
    code = 1
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.argv = ["bench_serving", *argv]
        module.cli_main()  # type: ignore[attr-defined]
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # never back into the parent's loop


def main() -> None:
    """Serve runs until standard input ends."""
    # Kept: what the file registered goes with its names.
    mended = runpy.run_path(sys.argv[1], run_name="launcher") if len(sys.argv) > 1 else {}
    module = load()
    assert mended is not None
    print(f"ready {version('sglang')} {' '.join(data_sets())}", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        began = time.monotonic()
        pid = os.fork()
        if not pid:
            child(module, job["argv"], job["log"])
        _, status, usage = os.wait4(pid, 0)
        cpu_s = usage.ru_utime + usage.ru_stime
        print(
            f"done {os.waitstatus_to_exitcode(status)} {cpu_s:.3f} {time.monotonic() - began:.3f}", flush=True
        )


if __name__ == "__main__":
    main()
