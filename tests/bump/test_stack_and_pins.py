"""What moved between two environments, which defaults changed, which versions the pins name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tokgate.bump.defaults import defaults, settled
from tokgate.bump.engines import engine_named, engine_of_commit, planned_engine
from tokgate.bump.pins import pin_here, pin_of_base
from tokgate.bump.stack import Stack, moves, read_stack
from tokgate.cli import run
from tokgate.config.engine import Engine
from tokgate.environments.engine import MadeEngine
from tokgate.environments.wanted import Wanted
from tokgate.errors import HostFault, UsageFault

RECORDINGS = Path(__file__).parents[1] / "contract" / "recordings"


def packages(folder: Path, **versions: str) -> Path:
    """A folder that the interpreter takes for installed packages."""
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_what_moved_is_read_from_the_engines_own_interpreter(tmp_path: Path) -> None:
    old = packages(
        tmp_path / "old", sglang="0.5.13", flashinfer_python="0.6.11", leftpad="1.0", sgl_kernel="0.4"
    )
    new = packages(
        tmp_path / "new", sglang="0.5.15", flashinfer_python="0.6.12", leftpad="1.1", sgl_kernel="0.4"
    )
    (new / "torch").mkdir()
    (new / "torch" / "__init__.py").write_text("raise ImportError('must not be imported')")
    (new / "torch" / "version.py").write_text("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    stacks = [
        read_stack(Engine("e", "gpu", "0.5.15", python=sys.executable, pythonpath=(str(folder),)))
        for folder in (old, new)
    ]
    assert stacks[1].cuda == "13.0"
    found = moves(*stacks)
    told = {move.name: (move.old, move.new) for move in found.weighty}
    assert told["sglang"] == ("0.5.13", "0.5.15")
    assert told["flashinfer-python"] == ("0.6.11", "0.6.12")
    assert told["CUDA of torch"] == (None, "13.0")
    assert told["torch"][1] == "2.11.0+cu130"
    assert "sgl-kernel" not in told
    assert [move.name for move in found.others] == ["leftpad"]
    assert "flashinfer-python==0.6.12\n" in stacks[1].lock()


def test_an_environment_that_cannot_be_asked_is_not_known_and_not_unmoved(tmp_path: Path) -> None:
    gone = read_stack(Engine("e", "gpu", "1", python=str(tmp_path / "python")))
    assert gone.unknown is not None
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho no interpreter >&2\nexit 1\n")
    silent.chmod(0o755)
    mute = read_stack(Engine("e", "gpu", "1", python=str(silent)))
    assert mute.unknown is not None
    assert "no interpreter" in mute.unknown
    found = moves(gone, Stack({"torch": "2"}))
    assert not found.weighty
    assert found.unknown[0].startswith("old: ")


def test_changed_defaults_of_two_real_versions() -> None:
    infos = [
        json.loads((RECORDINGS / f"cpu-{version}" / "baseline" / "server_info.json").read_text())
        for version in ("0.5.15.post1", "0.5.23")
    ]
    found = defaults(*map(settled, infos))
    assert ("chunked_prefill_size", "2048", "4096") in {(c.name, c.old, c.new) for c in found.changed}
    assert "cuda_graph_tc_compiler" in found.dropped
    assert found.added
    same = defaults(settled(infos[0]), settled(infos[0]))
    assert not (same.changed or same.added or same.dropped)


def test_keys_are_not_kept() -> None:
    assert "api_key" not in settled({"server_args": {}, "api_key": "s3cret", "tp_size": 1})


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def pinned(tmp_path: Path) -> Path:
    """A clone whose branch moved the pin, while main moved it elsewhere since."""
    (tmp_path / "ci").mkdir()
    pin = tmp_path / "ci" / "sglang.pin"
    git(tmp_path, "init", "-q")
    for branch, version in (("main", "0.5.13"), ("change", "0.5.15"), ("main", "0.5.14")):
        if branch == "change":
            git(tmp_path, "checkout", "-q", "-b", "change")
        elif version == "0.5.14":
            git(tmp_path, "checkout", "-q", "main")
        pin.write_text(version + "\n")
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", version)
    git(tmp_path, "checkout", "-q", "change")
    return tmp_path


def test_the_pins_name_the_versions_as_the_change_saw_them(
    pinned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_BASE_REF", raising=False)
    assert pin_here(pinned) == "0.5.15"
    # Where the change branched off, not what main has by now.
    assert pin_of_base(pinned) == ("0.5.13", "main")
    assert pin_of_base(pinned, "main") == ("0.5.13", "main")


def test_the_command_takes_both_versions_from_the_pins(
    pinned: Path, patient: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GITHUB_BASE_REF", raising=False)
    monkeypatch.setenv("TOKGATE_HOME", str(pinned / "home"))
    shutil.copytree(patient, pinned / "perf_tests")
    asked = ["bump", "--dry-run", f"--config-folder={pinned / 'perf_tests'}", "--profiles=baseline"]
    asked += ["--workloads=chat-bs1", f"--results={pinned / 'results'}"]
    assert run(asked) == 0
    told = capsys.readouterr().out
    assert "--from 0.5.13: the pin of main; --to 0.5.15" in told
    assert "SGLang 0.5.13); new: " in told
    (pinned / "ci" / "sglang.pin").write_text("0.5.13")
    assert run(asked) == 2
    assert "nothing to compare" in capsys.readouterr().err


def test_a_base_that_is_not_there_is_named(pinned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_BASE_REF", "release")
    with pytest.raises(UsageFault, match="origin/release"):
        pin_of_base(pinned)
    (pinned / "ci" / "sglang.pin").unlink()
    with pytest.raises(UsageFault, match=r"sglang\.pin"):
        pin_here(pinned)


def test_a_version_means_the_environment_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKGATE_HOME", str(tmp_path))
    for name, kind, version in (("a", "cpu", "0.5.15"), ("b", "gpu", "0.5.15"), ("c", "gpu", "0.5.14")):
        folder = tmp_path / "environments" / name
        folder.mkdir(parents=True)
        (folder / "engine.yaml").write_text(f"kind: {kind}\nversion: {version}\npython: /usr/bin/python3\n")
    assert engine_named("0.5.15", print).name == "b"
    planned = planned_engine("0.5.16")
    assert (planned.version, planned.kind) == ("0.5.16", "gpu")
    with pytest.raises(UsageFault, match="no engine named 'nowhere'"):
        planned_engine("nowhere")


def test_a_version_that_is_not_there_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKGATE_HOME", str(tmp_path))
    asked = []

    def make(wanted: Wanted, root: Path, say: object) -> MadeEngine:
        asked.append(wanted)
        path = tmp_path / "engine.yaml"
        path.write_text("kind: gpu\nversion: 0.5.16\npython: /usr/bin/python3\n")
        return MadeEngine("e", "0.5.16", path, path, tmp_path, built=True, wall_s=0.0)

    monkeypatch.setattr("tokgate.environments.engine.make", make)
    monkeypatch.setattr("tokgate.bump.engines.open_nvml", object)
    assert engine_named("0.5.16", print).version == "0.5.16"
    assert (asked[0].source, asked[0].version) == ("release", "0.5.16")
    assert engine_of_commit("abc123", tmp_path, print).version == "0.5.16"
    assert (asked[1].source, asked[1].ref, asked[1].location) == ("commit", "abc123", str(tmp_path))


def test_nothing_is_made_where_its_server_could_not_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without a GPU once waited for 182 packages before that was said."""
    monkeypatch.setenv("TOKGATE_HOME", str(tmp_path))
    monkeypatch.setattr("tokgate.bump.engines.open_nvml", lambda: "no driver")
    monkeypatch.setattr("tokgate.environments.engine.make", lambda *_: pytest.fail("it was made"))
    with pytest.raises(HostFault, match="of which this host shows none: no driver") as caught:
        engine_named("0.5.16", print)
    assert "plan without one: --dry-run" in caught.value.details
    with pytest.raises(HostFault, match="of which this host shows none: no driver"):
        engine_of_commit("abc", tmp_path, print)


def test_an_engine_that_cannot_be_made_for_want_of_a_network_says_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(*_: object) -> MadeEngine:
        raise HostFault("resolving by uv failed", ["cause: Connection refused"])

    monkeypatch.setenv("TOKGATE_HOME", str(tmp_path))
    monkeypatch.setattr("tokgate.bump.engines.open_nvml", object)
    monkeypatch.setattr("tokgate.environments.engine.make", make)
    with pytest.raises(HostFault, match="resolving by uv failed") as caught:
        engine_named("0.5.16", print)
    assert caught.value.details[0] == "cause: Connection refused"
    assert any("--from old/engine.yaml" in line for line in caught.value.details)


def test_a_folder_with_an_engine_file_is_an_engine(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "engine.yaml").write_text("kind: gpu\nversion: 0.5.13\npython: /usr/bin/python3\n")
    found = engine_named(str(tmp_path / "old"), print)
    assert (found.name, found.version) == ("old", "0.5.13")
