"""Fixtures: an index of small wheels instead of the public one, and an environment made from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.environments.wheels import pinned, recipe, wheel
from tokgate.environments.environment import Made, make
from tokgate.environments.recipe import Recipe

# `import launch_server` runs in the made environment: this torch has what it touches.
TORCH = """
class library:
    class Library:
        def __init__(self, *args): pass
        def define(self, schema): pass
"""


@dataclass(frozen=True, slots=True)
class Index:
    """A folder of wheels and a lock of them."""

    folder: Path
    lock_file: Path
    recipe: Recipe


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """torch in two builds, as on a machine that has its own CPU build, and two other packages."""
    folder = tmp_path_factory.mktemp("wheels")
    torches = [wheel(folder, "torch", "1.0", TORCH), wheel(folder, "torch", "1.0+cpu", TORCH)]
    others = [wheel(folder, "torchvision", "2.0"), wheel(folder, "sglang", "0.5.23", "ANSWER = 42")]
    lock_file = folder / "small.txt"
    lock_file.write_text("# written by a test\n" + pinned(*torches, *others), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PIP", "UV"):
            patch.setenv(f"{name}_FIND_LINKS", str(folder))
            patch.setenv(f"{name}_NO_INDEX", "1")
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        yield Index(folder, lock_file, recipe(lock_file, "sglang"))


@dataclass(frozen=True, slots=True)
class MadeOnce:
    """An environment that several tests read, and what was said while it was made."""

    made: Made
    root: Path
    said: str


@pytest.fixture(scope="session")
def made_once(index: Index, tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """Made from the small wheels by the real installers."""
    said: list[str] = []
    root = tmp_path_factory.mktemp("environments")
    made = make(index.recipe, root, said.append)
    return MadeOnce(made, root, "\n".join(said))


@pytest.fixture(scope="module")
def engine_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of small wheels: sglang in three versions, one of which cannot be had."""
    folder = tmp_path_factory.mktemp("wheels")
    wheel(folder, "sglang", "0.5.13", "ANSWER = 13", requires="kernel==1")
    wheel(folder, "sglang", "0.5.15", "ANSWER = 15", requires="kernel==2")
    wheel(folder, "sglang", "0.5.16", requires="kernel==3")
    wheel(folder, "kernel", "1")
    wheel(folder, "kernel", "2")
    return folder


@pytest.fixture
def offline(
    engine_wheels: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the small wheels can be had."""
    for name in ("PIP", "UV"):
        monkeypatch.setenv(f"{name}_FIND_LINKS", str(engine_wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    # An index that holds nothing: uv knows no variable that turns it off.
    monkeypatch.setenv("UV_DEFAULT_INDEX", tmp_path_factory.mktemp("empty-index").as_uri())
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
