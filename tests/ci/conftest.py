"""A folder of small wheels in the place of the index; a clone with a change, and the environment of its jobs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from ci.airgap.pack import pack
from ci.airgap.rules import Rules
from tests.ci import packs, repository
from tests.ci.workflows import ROOT


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
    return Rules(
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        platform="x86_64-manylinux_2_34",
        env={"HF_HUB_OFFLINE": "1"},
        runner=frozenset({"pytest"}),
        left_out=frozenset({"datasets"}),
        prune=("kernel_big/*",),
        strip_from_bytes=2**20,
    )


@pytest.fixture
def index(wheels: Path) -> Path:
    """sglang in two versions that share a large file, with a kernel, a .pth and what the runner has."""
    packs.fill(wheels)
    return wheels


@pytest.fixture
def packed(index: Path, rules: Rules, tmp_path: Path) -> Path:
    """A pack of sglang 0.5.15."""
    out = tmp_path / "pack"
    pack("sglang==0.5.15", out, rules, packs.PIECE, say=packs.silent)
    return out


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with a base branch and a change."""
    return repository.make(tmp_path / "clone")


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Looks like the .venv that ci/environment.sh makes, and is this Python."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    shutil.copyfile(ROOT / "ci" / "locks" / "dev.txt", folder / "tokgate-lock")
    return folder


@pytest.fixture
def env(venv: Path, tmp_path: Path) -> dict[str, str]:
    """What GitHub and the runner set, and nothing that the machine of this test has set."""
    return {
        "HOME": str(tmp_path / "home"),
        "TOKGATE_HOME": str(tmp_path / "tokgate-home"),
        "TOKGATE_VENV": str(venv),
        "TOKGATE_ENGINE": "emulated:steady",
        "GITHUB_BASE_REF": "main",
        "GITHUB_RUN_ID": "4711",
        "TOKGATE_LABELS": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
