"""Environments of engines by version, commit, wheel and folder: the real resolvers on small wheels."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.environments.wheels import project, wheel
from tokgate.cli import run
from tokgate.config.engine import load_engine, resolve_engine
from tokgate.environments import installer, shelf
from tokgate.environments.engine import MadeEngine, make, resolved, versions
from tokgate.environments.lock import Lock
from tokgate.environments.store import MARKER, site_packages
from tokgate.environments.wanted import parse
from tokgate.errors import HostFault, UsageFault

PYTHON = installer.running()


def silent(_: str) -> None:
    """Takes what is said."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of small wheels: sglang in three versions, one of which cannot be had."""
    folder = tmp_path_factory.mktemp("wheels")
    wheel(folder, "sglang", "0.5.13", "ANSWER = 13", requires="kernel==1")
    wheel(folder, "sglang", "0.5.15", "ANSWER = 15", requires="kernel==2")
    wheel(folder, "sglang", "0.5.16", requires="kernel==3")
    wheel(folder, "kernel", "1")
    wheel(folder, "kernel", "2")
    return folder


@pytest.fixture(autouse=True)
def offline(wheels: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP", "UV"):
        monkeypatch.setenv(f"{name}_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    # An index that holds nothing: uv knows no variable that turns it off.
    monkeypatch.setenv("UV_DEFAULT_INDEX", tmp_path_factory.mktemp("empty-index").as_uri())
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where several tests find what the first of them made."""
    return tmp_path_factory.mktemp("environments")


def answer(made: MadeEngine) -> str:
    engine = load_engine(made.engine_file)
    command = [engine.python, "-c", "import sglang; print(sglang.ANSWER)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def repository(folder: Path, *answers: int, subdirectory: str = "python") -> list[str]:
    """A repository with a commit for each answer; the project's version counts up."""

    def git(*arguments: str) -> str:
        command = [
            "git",
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.org",
            "-C",
            str(folder),
            *arguments,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    folder.mkdir()
    git("init", "--quiet", "--initial-branch=main")
    commits = []
    for number, value in enumerate(answers):
        project(folder / subdirectory, "sglang", f"0.5.{20 + number}", f"ANSWER = {value}", "kernel==2")
        git("add", ".")
        git("commit", "--quiet", "--message", f"answer {value}")
        commits.append(git("rev-parse", "HEAD"))
    return commits


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


def test_lock_holds_hashes_and_no_address(root: Path, wheels: Path) -> None:
    made = make(parse("sglang==0.5.15"), root, silent)
    text = made.lock_file.read_text()
    assert text.startswith(f"# sglang==0.5.15; CPython {PYTHON}\n")
    assert "://" not in text and str(wheels) not in text and "find-links" not in text
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


def test_commit_of_a_clone(tmp_path: Path) -> None:
    old, new = repository(tmp_path / "clone", 1, 2)
    root = tmp_path / "root"
    made = [make(parse(f"commit:{sha}", tmp_path / "clone"), root, silent) for sha in (old, new)]
    assert [answer(one) for one in made] == ["1", "2"]
    assert made[0].name == f"sglang-0.5.20-commit-{old[:12]}"
    assert made[0].lock_file.read_text().startswith(f"# sglang of commit {old}; CPython")
    assert str(tmp_path) not in made[0].lock_file.read_text()
    # The clone is as it was: still on its branch, nothing built in it.
    status = ["git", "-C", str(tmp_path / "clone"), "status", "--porcelain", "--branch"]
    assert subprocess.run(status, capture_output=True, text=True, check=True).stdout == "## main\n"


def test_git_address_with_a_branch_and_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(tmp_path / "clone", 7, subdirectory="deep/er")
    text = f"sglang @ git+file://{tmp_path}/clone@main#subdirectory=deep/er"
    root = tmp_path / "root"
    made = make(parse(text), root, silent)
    assert answer(made) == "7"
    builds: list[str] = []
    monkeypatch.setattr("tokgate.environments.sources._build", lambda *_: builds.append("built"))
    assert not make(parse(text), root, silent).built
    assert builds == []  # the commit's wheel was kept


@pytest.mark.parametrize("ref", ["0" * 40, "nothing", "--version"])
def test_commit_that_is_not_there(ref: str, tmp_path: Path) -> None:
    repository(tmp_path / "clone", 1)
    with pytest.raises(UsageFault, match=f"has no commit '{ref}'"):
        make(parse(f"commit:{ref}", tmp_path / "clone"), tmp_path / "root", silent)


def test_folder_is_not_built_in_and_a_change_is_another_environment(tmp_path: Path) -> None:
    folder = project(tmp_path / "source", "sglang", "0.5.17", "ANSWER = 3", "kernel==1")
    first = make(parse(str(folder)), tmp_path / "root", silent)
    assert answer(first) == "3"
    assert not (folder / "droppings").exists()
    assert not make(parse(str(folder)), tmp_path / "root", silent).built
    (folder / "code.txt").write_text("ANSWER = 4")
    second = make(parse(str(folder)), tmp_path / "root", silent)
    assert second.name != first.name
    assert (answer(first), answer(second)) == ("3", "4")


def test_wheel_takes_the_place_of_the_indexs_version(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    path = wheel(own, "sglang", "0.5.15", "ANSWER = 99", requires="kernel==2")
    made = make(parse(str(path)), tmp_path / "root", silent)
    assert answer(made) == "99"
    lock = Lock.parse(made.lock_file.read_text())
    assert hashlib.sha256(path.read_bytes()).hexdigest() in lock.blocks["sglang"]


def test_folder_without_a_project(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="holds neither a pyproject"):
        make(parse(str(tmp_path)), tmp_path / "root", silent)


def test_build_that_fails_shows_its_last_lines(tmp_path: Path) -> None:
    folder = project(tmp_path / "source", "sglang", "0.5.17")
    (folder / "backend.py").write_text("raise RuntimeError('no compiler here')")
    with pytest.raises(HostFault, match="building the wheel failed") as caught:
        make(parse(str(folder)), tmp_path / "root", silent)
    assert any("no compiler here" in line for line in caught.value.details)


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


def aged(root: Path, name: str, days: float) -> None:
    then = time.time() - days * 86400
    os.utime(root / name / "used", (then, then))


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Two engines of which 0.5.15 was used last, and a wheel that was."""
    for name in ("sglang==0.5.13", "sglang==0.5.15"):
        make(parse(name), tmp_path, silent)
    aged(tmp_path, "sglang-0.5.13", 9)
    aged(tmp_path, "sglang-0.5.15", 2)
    return tmp_path


def test_least_recently_used_goes_first(three: Path) -> None:
    sizes = {item.name: item.disk_bytes for item in shelf.kept(three)}
    assert list(sizes) == ["sglang-0.5.15", "sglang-0.5.13"]
    said: list[str] = []
    shelf.bound(three, sum(sizes.values()) / 2**30, "", said.append)
    assert said == [] and len(shelf.kept(three)) == 2
    shelf.bound(three, (sum(sizes.values()) - 1) / 2**30, "", said.append)
    assert [item.name for item in shelf.kept(three)] == ["sglang-0.5.15"]
    assert said[0].startswith("removed sglang-0.5.13, the least recently used: ")


def test_the_one_just_made_stays_and_the_broken_bound_is_told(three: Path) -> None:
    said: list[str] = []
    shelf.bound(three, 0, "sglang-0.5.13", said.append)
    assert [item.name for item in shelf.kept(three)] == ["sglang-0.5.13"]
    assert "are left, more than --keep-gib 0" in said[-1]


def test_one_in_use_is_not_removed(three: Path) -> None:
    engine = load_engine(three / "sglang-0.5.13" / "engine.yaml")
    running = subprocess.Popen([engine.python, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        said: list[str] = []
        shelf.bound(three, 0, "", said.append)
        assert [item.name for item in shelf.kept(three)] == ["sglang-0.5.13"]
        assert f"kept sglang-0.5.13: in use by pid {running.pid} (" in "\n".join(said)
        with pytest.raises(HostFault, match="is in use by pid"):
            shelf.remove("sglang-0.5.13", three, silent)
    finally:
        running.communicate(b"\n")
    shelf.remove("sglang-0.5.13", three, silent)
    assert shelf.kept(three) == []


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
