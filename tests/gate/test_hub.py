"""Hub models: found in the cache by revision, examined before the launch like local ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokgate.gate import hub


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A hub cache with one model: ``main`` is commit aaa, commit bbb is there as well."""
    model = tmp_path / "hub" / "models--owner--name"
    for commit in ("aaa", "bbb"):
        (model / "snapshots" / commit).mkdir(parents=True)
        (model / "snapshots" / commit / "config.json").write_text("{}")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("aaa")
    return tmp_path


def test_a_revision_is_found_by_branch_or_commit(cache: Path) -> None:
    env = {"HF_HOME": str(cache)}
    assert hub.folder("owner/name", None, env).name == "aaa"
    assert hub.folder("owner/name", "main", env).name == "aaa"
    assert hub.folder("owner/name", "bbb", env).name == "bbb"
    assert hub.folder("owner/name", None, {"HF_HUB_CACHE": str(cache / "hub")}).name == "aaa"


def test_what_is_not_there_is_not_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"HF_HOME": str(cache)}
    assert hub.folder("owner/other", None, env) is None
    assert hub.folder("owner/name", "ccc", env) is None
    (cache / "hub/models--owner--name/snapshots/bbb/config.json").unlink()
    assert hub.folder("owner/name", "bbb", env) is None
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(cache / "none"))
    assert hub.folder("owner/name", None, {}) is None


def test_a_local_folder_is_itself(tmp_path: Path) -> None:
    assert hub.folder(str(tmp_path), None, {}) == tmp_path
