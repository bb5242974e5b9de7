"""Locks of GPUs between processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokgate.errors import HostFault, HostLocked
from tokgate.host import lock
from tokgate.host.lock import GpuLocks

HOLD = """
import sys
from tokgate.host.lock import GpuLocks
with GpuLocks(sys.argv[1:]):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TOKGATE_RUNTIME_DIR", str(tmp_path / "locks"))
    return tmp_path / "locks"


def hold(*uuids: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, *uuids],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_free_lock_is_taken_and_leaves_nothing(folder: Path) -> None:
    with GpuLocks(["GPU-b", "GPU-a", "GPU-a"]):
        assert sorted(path.name for path in folder.iterdir()) == ["GPU-a.lock", "GPU-b.lock"]
        words = json.loads((folder / "GPU-a.lock").read_text())
        assert words["pid"] == os.getpid()
    assert list(folder.iterdir()) == []


def test_held_lock_is_refused_with_its_holder(folder: Path) -> None:
    other = hold("GPU-b")
    try:
        words = rf"GPU-b is in use by another tokgate: pid {other.pid} "
        with pytest.raises(HostLocked, match=words), GpuLocks(["GPU-a", "GPU-b"]):
            pytest.fail("two hold it")
        assert [path.name for path in folder.iterdir()] == ["GPU-b.lock"]
        with GpuLocks(["GPU-a"]):
            pass
    finally:
        other.communicate("\n")
    with GpuLocks(["GPU-b"]):
        pass


def test_queue_says_for_whom_it_waits(folder: Path) -> None:
    other = hold("GPU-a")
    told: list[str] = []
    began: list[float] = []

    def on_wait(words: str) -> None:
        told.append(words)
        began.append(time.monotonic())
        # Given back only once it is waited for, whenever that is.
        threading.Timer(0.5, lambda: other.communicate("\n")).start()

    with GpuLocks(["GPU-a"], wait_s=None, on_wait=on_wait):
        assert time.monotonic() - began[0] > 0.3
    assert len(told) == 1 and told[0].startswith(f"waiting for GPU-a, held by pid {other.pid} (")


def test_queue_gives_up(folder: Path) -> None:
    other = hold("GPU-a")
    try:
        with pytest.raises(HostLocked, match="after 0 s of waiting"), GpuLocks(["GPU-a"], wait_s=0.3):
            pytest.fail("two hold it")
    finally:
        other.communicate("\n")


def test_killed_holder_holds_nothing(folder: Path) -> None:
    other = hold("GPU-a")
    other.kill()
    other.communicate()
    assert [path.name for path in folder.iterdir()] == ["GPU-a.lock"]
    with GpuLocks(["GPU-a"]):
        pass
    assert list(folder.iterdir()) == []


def test_only_stale_files_are_removed(folder: Path) -> None:
    dead = hold("GPU-dead")
    dead.kill()
    dead.communicate()
    living = hold("GPU-living")
    try:
        assert lock.remove_stale(owner=living.pid) == []
        assert [path.name for path in lock.remove_stale()] == ["GPU-dead.lock"]
        with pytest.raises(HostLocked), GpuLocks(["GPU-living"]):
            pytest.fail("two hold it")
    finally:
        living.communicate("\n")


def test_many_contenders_never_hold_it_together(folder: Path, tmp_path: Path) -> None:
    """Files go on release: who locked a file that is gone must not think that it holds the lock."""
    script = f"""
from pathlib import Path
from tokgate.host.lock import GpuLocks
token = Path({str(tmp_path / "token")!r})
for _ in range(15):
    with GpuLocks(["GPU-a"], wait_s=None):
        token.touch(exist_ok=False)
        token.unlink()
"""
    command = [
        sys.executable,
        "-c",
        script.replace(
            "from tokgate.host.lock",
            "import tokgate.host.lock as lock\nlock._POLL_S = 0.001\nfrom tokgate.host.lock",
        ),
    ]
    crowd = [subprocess.Popen(command, cwd=Path(__file__).parents[2]) for _ in range(3)]
    assert [process.wait(60) for process in crowd] == [0, 0, 0]


def test_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TOKGATE_RUNTIME_DIR", str(tmp_path / "file" / "locks"))
    with pytest.raises(HostFault, match="cannot be used"):
        GpuLocks(["GPU-a"])
