"""Checks of the stand-in kernels against plain PyTorch formulas.

Run by the CPU engine's Python (the gate's own has no torch), as a folder: prints one JSON object, check name to
``null`` or the traceback. Only definitions are used as formulas: loops, softmax, indexing.
"""

from __future__ import annotations

import importlib
import json
import traceback

import torch
from harness import CHECKS

MODULES = ("absences", "attention", "slots", "trees")


def main() -> None:
    torch.manual_seed(0)
    results: dict[str, str | None] = {}
    for module in MODULES:
        importlib.import_module(module)
    for name, function in CHECKS.items():
        try:
            function()
            results[name] = None
        except Exception:  # noqa: BLE001 - each check reports, whatever it raises
            results[name] = traceback.format_exc()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
