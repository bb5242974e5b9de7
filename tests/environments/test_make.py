"""Making environments: the real venv, pip and uv on small wheels."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.environments.conftest import TORCH, Index, MadeOnce
from tests.environments.wheels import pinned, recipe, wheel
from tokgate.config.engine import load_engine, resolve_engine
from tokgate.environments import environment, installer
from tokgate.environments.checksum import contents
from tokgate.environments.environment import make, standing
from tokgate.environments.recipe import RECIPES, Recipe
from tokgate.environments.store import MARKER, site_packages
from tokgate.errors import HostFault

# Fails as uv does where it finds nothing; also where uv is not installed.
UV = shutil.which("false") or "/bin/false"


def silent(_: str) -> None:
    """Takes what `make` says."""


def copied(made_once: MadeOnce, to: Path) -> Path:
    """A copy of the made environment's root that a test may damage (its interpreter is not run)."""
    root = to / "environments"
    shutil.copytree(made_once.root, root, symlinks=True)
    return root


def the_environment(root: Path) -> Path:
    return next(root.glob(f"small/*/{MARKER}")).parent


def test_engine_file_names_a_working_interpreter(made_once: MadeOnce) -> None:
    engine = load_engine(made_once.made.engine_file)
    assert (engine.kind, engine.version, engine.name) == ("cpu", "0.5.23", "small")
    assert engine.lock_digest == made_once.made.recipe.digest
    code = "import sglang, sys; print(sglang.ANSWER, sys.prefix)"
    done = subprocess.run([engine.python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["42", str(made_once.made.environment)]
    assert Path(engine.launcher[0]).is_file()
    assert (Path(engine.pythonpath[0]) / "sgl_kernel" / "__init__.py").is_file()
    assert resolve_engine("small", made_once.root) == engine


def test_machines_own_cpu_build_of_torch_is_preferred(made_once: MadeOnce) -> None:
    versions = json.loads((made_once.made.environment / MARKER).read_text())["versions"]
    assert versions["torch"] == "1.0+cpu"
    assert "CUDA" not in made_once.said


def test_says_sizes_and_times(made_once: MadeOnce) -> None:
    assert "torch-1.0+cpu" in made_once.said
    assert " MB" in made_once.said and " s, checksum " in made_once.said


def test_second_call_installs_nothing(
    index: Index, made_once: MadeOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise AssertionError("an installer was started")

    monkeypatch.setattr(installer, "run", refuse)
    again = make(index.recipe, made_once.root, silent)
    assert not again.built
    assert again.engine_file == made_once.made.engine_file


def test_changed_lock_is_another_environment(index: Index, made_once: MadeOnce, tmp_path: Path) -> None:
    lock_file = tmp_path / "changed.txt"
    lock_file.write_text(index.lock_file.read_text() + "# changed\n")
    changed = recipe(lock_file, "sglang")
    assert changed.digest != index.recipe.digest
    assert not (made_once.root / "small" / changed.lock.digest[:12]).exists()


def test_standing_tells_what_is_there(index: Index, made_once: MadeOnce, tmp_path: Path) -> None:
    assert standing(index.recipe, tmp_path) is None
    found = standing(index.recipe, made_once.root)
    assert found is not None and found.current and found.disk_bytes > 1_000_000
    other = dataclasses.replace(index.recipe, stand_in=False)
    found = standing(other, made_once.root)
    assert found is not None and not found.current


def test_missing_file_is_told(index: Index, made_once: MadeOnce, tmp_path: Path) -> None:
    root = copied(made_once, tmp_path)
    (site_packages(the_environment(root)) / "sglang.py").unlink()
    with pytest.raises(HostFault, match="altered after it was made") as caught:
        make(index.recipe, root, silent)
    assert any("sglang.py: No such file" in line for line in caught.value.details)
    assert "tokgate env make small --rebuild" in caught.value.details[-1]


def test_added_package_is_told(index: Index, made_once: MadeOnce, tmp_path: Path) -> None:
    root = copied(made_once, tmp_path)
    packages = site_packages(the_environment(root))
    extra = wheel(tmp_path, "stranger", "9")
    shutil.unpack_archive(extra, packages, "zip")
    with pytest.raises(HostFault, match="altered after it was made"):
        make(index.recipe, root, silent)


def test_unaltered_copy_is_accepted(index: Index, made_once: MadeOnce, tmp_path: Path) -> None:
    assert not make(index.recipe, copied(made_once, tmp_path), silent).built


def test_what_a_killed_maker_left_is_built_anew(index: Index, made_once: MadeOnce, tmp_path: Path) -> None:
    root = copied(made_once, tmp_path)
    left = the_environment(root)
    (left / MARKER).unlink()
    (left / "half").touch()
    said: list[str] = []
    made = make(index.recipe, root, said.append)
    assert made.built and not (left / "half").exists()
    assert said[0].startswith("removing")


def test_wrong_hash_is_refused_and_leaves_no_engine(index: Index, tmp_path: Path) -> None:
    lock_file = tmp_path / "wrong.txt"
    good = index.lock_file.read_text()
    digest = next(line for line in good.splitlines() if "sha256:" in line).strip().rstrip(" \\")
    lock_file.write_text(good.replace(digest, "--hash=sha256:" + "0" * 64))
    with pytest.raises(HostFault, match="failed with exit code") as caught:
        make(recipe(lock_file, "sglang"), tmp_path, silent)
    assert any("hash" in line.lower() for line in caught.value.details)
    assert not (tmp_path / "small" / "engine.yaml").exists()
    assert not list(tmp_path.glob(f"small/*/{MARKER}"))


def test_import_that_fails_is_told_with_the_last_lines(
    made_once: MadeOnce, index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # As if everything were installed; only the check runs, in the real environment.
    broken = dataclasses.replace(index.recipe, modules=("sglang.absent",))
    env = made_once.made.environment
    with pytest.raises(HostFault, match="checking the environment failed") as caught:
        environment._imports(broken, env)
    assert any("No module named 'sglang.absent'" in line for line in caught.value.details)


def test_too_little_disk(index: Index, tmp_path: Path) -> None:
    huge = dataclasses.replace(index.recipe, disk_bytes=10**18)
    with pytest.raises(HostFault, match="takes 1000000000") as caught:
        make(huge, tmp_path, silent)
    assert "--root" in caught.value.details[0]


def test_package_outside_the_lock_is_told(index: Index, made_once: MadeOnce, tmp_path: Path) -> None:
    lock_file = tmp_path / "less.txt"
    blocks = index.recipe.lock.blocks
    lock_file.write_text("\n".join(blocks[name] for name in ("torch", "torchvision")) + "\n")
    found = contents(site_packages(made_once.made.environment))
    with pytest.raises(HostFault, match="not what its lock says") as caught:
        environment._matching(recipe(lock_file), found)
    assert caught.value.details == ("  sglang 0.5.23: not in the lock",)


def test_other_version_than_locked_is_told(index: Index, made_once: MadeOnce, tmp_path: Path) -> None:
    lock_file = tmp_path / "other.txt"
    lock_file.write_text(index.lock_file.read_text().replace("sglang==0.5.23", "sglang==0.5.22"))
    found = contents(site_packages(made_once.made.environment))
    with pytest.raises(HostFault) as caught:
        environment._matching(recipe(lock_file), found)
    assert caught.value.details == ("  sglang: 0.5.23, locked 0.5.22",)


def _make_in_child(
    recipe_: Recipe, root: Path, results: multiprocessing.Queue[tuple[bool, list[str]]]
) -> None:
    said: list[str] = []
    made = make(recipe_, root, said.append)
    results.put((made.built, said))


def test_two_makers_build_once(index: Index, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[tuple[bool, list[str]]] = context.Queue()
    makers = [
        context.Process(target=_make_in_child, args=(index.recipe, tmp_path, results)) for _ in range(2)
    ]
    for maker in makers:
        maker.start()
    outcomes = sorted(results.get(timeout=240)[0] for _ in makers)
    for maker in makers:
        maker.join()
    assert outcomes == [False, True]


def test_unwritable_root(index: Index, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostFault, match="cannot make 'small'"):
        make(index.recipe, tmp_path / "file", silent)


def test_public_torch_gets_its_cuda_libraries_and_pip_stands_in_for_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a plain machine: no CPU build at hand. And uv fails, as where only pip is configured."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    torch = wheel(wheels, "torch", "1.0", TORCH, requires="nvidia-small")
    wheel(wheels, "nvidia_small", "3.0")
    others = [wheel(wheels, "torchvision", "2.0"), wheel(wheels, "sglang", "0.5.23")]
    lock_file = wheels / "small.txt"
    lock_file.write_text(pinned(torch, *others))
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(installer, "uv", lambda: UV)
    said: list[str] = []
    made = make(recipe(lock_file, "sglang"), tmp_path, said.append)
    assert any(line.startswith("uv could not, pip will try: ") for line in said)
    assert any("CUDA build" in line for line in said)
    assert json.loads((made.environment / MARKER).read_text())["versions"]["nvidia-small"] == "3.0"


def test_locks_hold_no_address_and_the_right_version() -> None:
    for made_from in RECIPES.values():
        text = made_from.lock_file.read_text()
        assert "://" not in text and "index-url" not in text and "find-links" not in text
        lock = made_from.lock
        assert lock.versions["sglang"] == made_from.version
        assert {"torch", "torchvision"} <= set(lock.versions)
