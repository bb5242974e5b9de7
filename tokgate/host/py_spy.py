"""Where py-spy is, which reads the stacks of a hung engine."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

NAME = "py-spy"


def find() -> Path | None:
    """py-spy of tokgate's own environment, of a folder of packages on its path, else the one on PATH."""
    # `pip install --target DIR` puts programs into DIR/bin, which is on no PATH.
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    folders += [Path(entry) / "bin" for entry in sys.path if entry]
    for folder in folders:
        if (folder / NAME).is_file() and os.access(folder / NAME, os.X_OK):
            return folder / NAME
    found = shutil.which(NAME)
    return Path(found) if found else None
