"""A folder of small wheels in the place of the index."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.airgap.rules import Rules


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty; tests put their wheels there."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    # An index that holds nothing: uv knows no variable that turns it off.
    empty = tmp_path / "empty-index"
    empty.mkdir()
    monkeypatch.setenv("UV_DEFAULT_INDEX", empty.as_uri())
    return folder


@pytest.fixture
def rules() -> Rules:
    """For this Python: torch is left out, and one file of the kernels."""
    import sys

    return Rules(
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        platform="x86_64-manylinux_2_34",
        env={"HF_HUB_OFFLINE": "1"},
        runner=frozenset({"pytest"}),
        left_out=frozenset({"datasets"}),
        prune=("kernel_big/*",),
        strip_from_bytes=2**20,
    )
