"""The folder of a measurement goes with it, whenever it is interrupted."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokgate.cli import reap
from tokgate.load import scratch

ROOT = Path(__file__).parents[2]
KEPT_OPEN = """
import sys
from tokgate.load.scratch import scratch
with scratch() as folder:
    (folder / "requests.bin").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing but what a test makes, and Ctrl-C as Python has it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield tmp_path
    signal.signal(signal.SIGINT, before)


def test_requests_lie_where_the_spans_say(own_folder: Path) -> None:
    bodies = [b"a", b"", b"b" * (3 << 20), b"cd"]
    spans = scratch.write_requests(own_folder / "r", bodies)
    data = (own_folder / "r").read_bytes()
    assert [data[begin:end] for begin, end in spans] == bodies


def test_an_interruption_while_requests_are_written_leaves_no_folder(own_folder: Path) -> None:
    def bodies() -> Iterator[bytes]:
        yield b"x" * (2 << 20)
        assert [path.name[:13] for path in own_folder.iterdir()] == [scratch.PREFIX], "the control"
        signal.raise_signal(signal.SIGINT)
        yield b"never written"

    with pytest.raises(KeyboardInterrupt), scratch.scratch() as folder:
        scratch.write_requests(folder / "requests.bin", bodies())
    assert not list(own_folder.iterdir())


def test_a_second_interruption_waits_until_the_folder_is_removed(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def interrupted(path: Path, **options: bool) -> None:
        signal.raise_signal(signal.SIGINT)
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt), scratch.scratch() as folder:
        (folder / "file").touch()
    assert not list(own_folder.iterdir())


def test_reap_removes_the_folder_of_a_killed_measurement_and_no_other(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reap.marker, "find_all", list)
    monkeypatch.setattr(reap.lock, "remove_stale", list)
    (own_folder / "tokgate-load-of-somebody").mkdir()
    command = [sys.executable, "-c", KEPT_OPEN]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    pipes["env"] = {"TMPDIR": str(own_folder), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(command, **pipes) as alive, subprocess.Popen(command, **pipes) as killed:
        kept, left = (Path(process.stdout.readline().strip()) for process in (alive, killed))
        killed.kill()
        killed.wait()
        assert scratch.left_behind() == [left]
        reap.reap(dry_run=True)
        assert f"{left}: of a measurement whose tokgate is dead" in capsys.readouterr().out
        assert left.is_dir()
        reap.reap(dry_run=False)
        assert "1 folder removed" in capsys.readouterr().out
        assert not left.exists() and kept.is_dir() and (own_folder / "tokgate-load-of-somebody").is_dir()
        alive.communicate("")
    assert not kept.exists()
