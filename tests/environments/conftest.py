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
