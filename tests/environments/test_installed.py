"""What an environment holds is kept with the results."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest

from tests.environments.wheels import wheel
from tokgate.config.engine import Engine, emulated_engine, load_engine
from tokgate.environments.installed import Unknown, keep, packages
from tokgate.errors import ResultsUnwritable


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """An engine file with a lock, in a folder as `tokgate env make` leaves it."""
    folder = tmp_path / "sglang-9"
    folder.mkdir()
    (folder / "lock.txt").write_text("sglang==9 \\\n    --hash=sha256:00\n")
    (folder / "used").touch()
    os.utime(folder / "used", (1, 1))
    text = f"kind: gpu\nversion: '9'\npython: {sys.executable}\nlock: lock.txt\n"
    (folder / "engine.yaml").write_text(text)
    return load_engine(folder / "engine.yaml")


def test_lock_is_copied_and_its_environment_counts_as_used(engine: Engine, tmp_path: Path) -> None:
    kept = keep(engine, tmp_path)
    assert engine.lock is not None and kept == tmp_path / "engine-lock.txt"
    assert kept.read_bytes() == engine.lock.read_bytes()
    assert (engine.lock.parent / "used").stat().st_mtime > 1


def test_without_a_lock_the_packages_are_listed(engine: Engine, tmp_path: Path) -> None:
    import zipfile

    site = tmp_path / "site"
    with zipfile.ZipFile(wheel(tmp_path, "odd_Name", "4.2")) as archive:
        archive.extractall(site)
    kept = keep(dataclasses.replace(engine, lock=None, pythonpath=(str(site),)), tmp_path)
    assert kept == tmp_path / "engine-packages.txt"
    lines = kept.read_text().splitlines()
    assert "odd-name==4.2" in lines
    assert any(line.startswith("pytest==") for line in lines)


def test_first_on_the_path_counts(engine: Engine, tmp_path: Path) -> None:
    import zipfile

    site = tmp_path / "site"
    with zipfile.ZipFile(wheel(tmp_path, "pytest", "0.0.1")) as archive:
        archive.extractall(site)
    assert packages(dataclasses.replace(engine, pythonpath=(str(site),)))["pytest"] == "0.0.1"


def test_what_is_not_known_is_said(engine: Engine, tmp_path: Path) -> None:
    gone = dataclasses.replace(engine, lock=None, python=str(tmp_path / "no-python"))
    with pytest.raises(Unknown, match="does not tell its packages"):
        packages(gone)
    kept = keep(gone, tmp_path)
    assert kept is not None and kept.read_text().startswith("# not known: ")
    no_lock = dataclasses.replace(engine, lock=tmp_path / "absent.txt")
    kept = keep(no_lock, tmp_path)
    assert kept is not None and "absent.txt" in kept.read_text()


def test_emulated_engine_has_no_environment(tmp_path: Path) -> None:
    assert keep(emulated_engine(), tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_gone(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ResultsUnwritable, match="cannot be written"):
        keep(engine, tmp_path / "gone")
