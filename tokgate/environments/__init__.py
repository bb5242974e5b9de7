"""Engine environments that tokgate makes: a pinned SGLang in a virtual environment of its own."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """Folder of what tokgate makes once a machine: ``$TOKGATE_HOME``, else ``~/.cache/tokgate``."""
    named = os.environ.get("TOKGATE_HOME")
    return Path(named) if named else Path.home() / ".cache" / "tokgate"


def root() -> Path:
    """Folder of made environments: ``$TOKGATE_HOME/environments``, else ``~/.cache/tokgate/environments``."""
    return home() / "environments"
