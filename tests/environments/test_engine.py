"""Environments of released versions: the real resolvers on small wheels."""

from __future__ import annotations

import hashlib
import multiprocessing
from pathlib import Path

import pytest

from tests.environments.made import PYTHON, answer, silent
from tests.environments.wheels import wheel
from tokgate.cli import run
from tokgate.config.engine import resolve_engine
from tokgate.environments import installer
from tokgate.environments.engine import make, resolved, versions
from tokgate.environments.lock import Lock
from tokgate.environments.store import MARKER, site_packages
from tokgate.environments.wanted import parse
from tokgate.errors import HostFault

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where several tests find what the first of them made."""
    return tmp_path_factory.mktemp("environments")


def test_released_version_is_an_engine_by_its_name(root: Path) -> None:
    made = make(parse("sglang==0.5.15"), root, silent)
    assert made.built and answer(made) == "15"
    engine = resolve_engine("sglang-0.5.15", root)
    assert (engine.kind, engine.version, engine.lock) == ("gpu", "0.5.15", made.lock_file)
    assert engine.lock_digest == hashlib.sha256(made.lock_file.read_bytes()).hexdigest()
    assert versions(made.lock_file) == {"sglang": "0.5.15", "kernel": "2"}
    assert made.environment.name == engine.lock_digest[:12]


def test_second_call_neither_resolves_nor_installs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make(parse("sglang==0.5.15"), root, silent)

    def refuse(*_: object) -> str:
        raise AssertionError("a program was started")

    monkeypatch.setattr(installer, "run", refuse)
    again = make(parse("sglang==0.5.15"), root, silent)
    assert not again.built and again.engine_file == first.engine_file


def test_lock_holds_hashes_and_no_address(root: Path, engine_wheels: Path) -> None:
    made = make(parse("sglang==0.5.15"), root, silent)
    text = made.lock_file.read_text()
    assert text.startswith(f"# sglang==0.5.15; CPython {PYTHON}\n")
    assert "://" not in text and str(engine_wheels) not in text and "find-links" not in text
    assert set(Lock.parse(text).blocks) == {"sglang", "kernel"}


def test_two_versions_lie_side_by_side(root: Path) -> None:
    new = make(parse("sglang==0.5.15"), root, silent)
    old = make(parse("sglang==0.5.13"), root, silent)
    assert (answer(old), answer(new)) == ("13", "15")
    assert versions(old.lock_file)["kernel"] == "1"


def test_what_cannot_be_resolved_shows_the_resolvers_last_lines(root: Path) -> None:
    with pytest.raises(HostFault, match="resolving by uv failed with exit code") as caught:
        make(parse("sglang==0.5.16"), root, silent)
    assert any("kernel==3" in line for line in caught.value.details)
    assert not (root / "sglang-0.5.16").exists()


def test_venv_and_pip_where_there_is_no_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer, "uv", lambda: None)
    made = make(parse("sglang==0.5.15"), tmp_path, silent)
    assert answer(made) == "15"
    assert versions(made.lock_file) == {"sglang": "0.5.15", "kernel": "2"}
    with pytest.raises(HostFault, match="resolving by pip failed") as caught:
        make(parse("sglang==0.5.16"), tmp_path, silent)
    assert any("kernel==3" in line for line in caught.value.details)


def test_altered_environment_is_told_and_rebuilt(tmp_path: Path) -> None:
    made = make(parse("sglang==0.5.13"), tmp_path, silent)
    (site_packages(made.environment) / "sglang.py").write_text("ANSWER = 'changed'")
    with pytest.raises(HostFault, match="was altered after it was made") as caught:
        make(parse("sglang==0.5.13"), tmp_path, silent)
    assert caught.value.details[-1] == "build it anew with: tokgate env make 'sglang==0.5.13' --rebuild"
    assert answer(make(parse("sglang==0.5.13"), tmp_path, silent, rebuild=True)) == "13"


def test_file_of_another_content_than_locked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = resolved(parse("sglang==0.5.13"), tmp_path, silent, PYTHON)
    (tmp_path / found.name).mkdir()
    (tmp_path / found.name / "lock.txt").write_text(found.text)
    other = tmp_path / "other"
    other.mkdir()
    wheel(other, "sglang", "0.5.13", "ANSWER = 'evil'", requires="kernel==1")
    wheel(other, "kernel", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(other))
    with pytest.raises(HostFault, match="installing the packages failed") as caught:
        make(parse("sglang==0.5.13"), tmp_path, silent)
    assert any("hash" in line.lower() for line in caught.value.details)
    assert not list(tmp_path.glob(f"*/*/{MARKER}"))


def _make_in_child(root: Path, results: multiprocessing.Queue[bool]) -> None:
    results.put(make(parse("sglang==0.5.15"), root, silent).built)


def test_two_makers_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[bool] = context.Queue()
    makers = [context.Process(target=_make_in_child, args=(tmp_path, results)) for _ in range(2)]
    for maker in makers:
        maker.start()
    outcomes = sorted(results.get(timeout=240) for _ in makers)
    for maker in makers:
        maker.join()
    assert outcomes == [False, True]


def test_command_makes_lists_bounds_and_removes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--root", str(tmp_path)]
    assert run(["env", "make", "sglang==0.5.13", *root]) == 0
    assert f"use it with: --engine {tmp_path / 'sglang-0.5.13' / 'engine.yaml'}" in capsys.readouterr().out
    assert run(["env", "make", "0.5.15", "--keep-gib", "0.000001", *root]) == 0
    assert "removed sglang-0.5.13, the least recently used" in capsys.readouterr().out
    assert run(["env", "list", *root]) == 0
    assert "sglang-0.5.15     version 0.5.15 from sglang==0.5.15: 0.0 GB, used " in capsys.readouterr().out
    assert run(["env", "remove", "sglang-0.5.13", *root]) == 2
    assert f"no environment named 'sglang-0.5.13' in {tmp_path}\nthere are: sglang-0.5.15" in (
        capsys.readouterr().err
    )
    assert run(["env", "remove", "sglang-0.5.15", *root]) == 0
    assert capsys.readouterr().out.startswith("removed sglang-0.5.15: ")


def test_dry_run_prints_the_lock_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["env", "make", "sglang==0.5.15", "--dry-run", "--root", str(tmp_path / "root")]) == 0
    shown = capsys.readouterr()
    assert set(Lock.parse(shown.out).blocks) == {"sglang", "kernel"}
    assert "sglang-0.5.15: 2 packages, lock " in shown.err
    assert not (tmp_path / "root").exists()


def test_options_that_do_not_apply_to_a_built_in_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["env", "make", "cpu", "--dry-run"]) == 2
    assert "'cpu' has a lock of its own" in capsys.readouterr().err


def test_python_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HostFault, match=r"making the virtual environment failed|resolving by uv failed"):
        make(parse("sglang==0.5.15"), tmp_path, silent, python="3.99")


def test_two_packages_that_bring_the_same_file_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two dependencies of 0.5.10 do with a build_backend.py: whichever came last lies there."""
    own = tmp_path / "own"
    own.mkdir()
    wheel(own, "sglang", "0.5.10", "ANSWER = 10", requires="twin")
    wheel(own, "twin", "1", files={"sglang.py": "ANSWER = 'of the twin'"})
    monkeypatch.setenv("UV_FIND_LINKS", str(own))
    made = make(parse("sglang==0.5.10"), tmp_path / "root", silent)
    assert answer(made) in ("10", "of the twin")
    assert not make(parse("sglang==0.5.10"), tmp_path / "root", silent).built
    (site_packages(made.environment) / "sglang.py").write_text("ANSWER = 'changed by hand'")
    with pytest.raises(HostFault, match="was altered after it was made") as caught:
        make(parse("sglang==0.5.10"), tmp_path / "root", silent)
    assert "recorded 11 or 22" in "\n".join(caught.value.details) or "recorded 22 or 11" in "\n".join(
        caught.value.details
    )
