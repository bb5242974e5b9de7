"""Golden messages: what is recorded is what people read, figures normalised."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest


def compare(path: Path, text: str, normal: Iterable[tuple[str, str]] = ()) -> None:
    """Hold a message against the recorded one.

    ``TOKGATE_RECORD_MESSAGES=1`` records instead (and fails, so that it never passes by accident).

    Args:
        normal: pattern and replacement for what varies from run to run.
    """
    for pattern, word in normal:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    if os.environ.get("TOKGATE_RECORD_MESSAGES") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"recorded {path.name}:\n{text}")
    recorded = path.read_text(encoding="utf-8")
    if text != recorded:
        lines = (message.splitlines(keepends=True) for message in (recorded, text))
        pytest.fail("".join(difflib.unified_diff(*lines, f"recorded {path.name}", "now")))
