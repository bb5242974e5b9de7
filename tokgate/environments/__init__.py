"""Engine environments that tokgate makes: a pinned SGLang in a virtual environment of its own."""

from __future__ import annotations

import os
from pathlib import Path


def root() -> Path:
    """Folder of made environments: ``$TOKGATE_HOME/environments``, else ``~/.cache/tokgate/environments``."""
    home = os.environ.get("TOKGATE_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "tokgate") / "environments"
