"""Pairs are made in a process of their own: what makes them may hold GPU memory as long as it lives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tokgate.errors import UsageFault
from tokgate.gate import modelstore


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKGATE_HOME", str(tmp_path))
    return tmp_path


def test_a_pair_is_made_by_another_process_and_found_by_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError(f"made in process {os.getpid()}")

    monkeypatch.setattr("tokgate.models.maker.make", never)
    folder = modelstore.pair("tiny", seed=0, accept_length=2.5)
    assert (folder / "truth.json").is_file()
    # The second time it is there: nothing is made, by nobody.
    assert modelstore.pair("tiny", seed=0, accept_length=2.5) == folder


def test_a_fault_comes_back_whole() -> None:
    with pytest.raises(UsageFault, match="no preset 'tinny'") as caught:
        modelstore.pair("tinny", seed=0, accept_length=2.5)
    assert str(caught.value)
