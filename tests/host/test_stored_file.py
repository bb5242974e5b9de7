"""What is written whole, and what is never replaced: links, devices, pipes."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tokgate.errors import HostLocked, ResultsUnwritable, UsageFault
from tokgate.host import stored_file
from tokgate.host.stored_file import measured_into, write_whole
from tokgate.load.sample import check_writable


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    for text in ("one", "two"):
        check_writable(path)
        write_whole(path, text)
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    real, link = tmp_path / "far" / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    check_writable(link)
    write_whole(link, "new")
    assert link.is_symlink() and real.read_text() == "new"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    check_writable(pipe)
    write_whole(pipe, "new")
    reader.join(20)
    assert read == ["new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode) and list(tmp_path.iterdir()) == [pipe]


def test_a_device_is_written_to(tmp_path: Path) -> None:
    """By a link, so that a fault of this test harms no device."""
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    check_writable(link)
    with pytest.raises(ResultsUnwritable, match="No space left on device"):
        write_whole(link, "new")
    assert link.is_symlink() and stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="it is a folder"):
        check_writable(tmp_path)
    with pytest.raises(ResultsUnwritable, match="cannot be written"):
        write_whole(tmp_path, "new")
    assert list(tmp_path.iterdir()) == []


HOLD = """
import sys
from pathlib import Path
from typing import Any
from tokgate.host import stored_file
from tokgate.host.stored_file import measured_into

with measured_into(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_measured_into_by_one_process_which_is_named(tmp_path: Path) -> None:
    """And is free again however that one ends."""
    folder = tmp_path / "new"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(HostLocked) as refused, measured_into(folder):
            pass
        other.kill()
    (first, _) = str(refused.value).split("\n")
    assert first.startswith(f"{folder} is in use by another tokgate: pid {other.pid} ({sys.executable} -c")
    assert refused.value.exit_code == 3
    with measured_into(folder):
        pass
    assert not list(folder.iterdir())


@pytest.fixture
def as_on_btrfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files say another device than the file system that /proc/locks names."""
    fstat = os.fstat

    def other_device(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        return os.stat_result((*found[:2], os.makedev(0, 199), *found[3:]))

    monkeypatch.setattr(os, "fstat", other_device)


def in_use(folder: Path) -> str:
    """What a second tokgate is told."""
    with measured_into(folder), pytest.raises(HostLocked) as refused, measured_into(folder):
        pass
    return refused.value.headline


@pytest.mark.usefixtures("as_on_btrfs")
def test_a_holder_is_named_where_files_and_locks_disagree_on_the_device(tmp_path: Path) -> None:
    assert in_use(tmp_path).startswith(f"{tmp_path} is in use by another tokgate: pid {os.getpid()} (")


def hidden(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A file of /proc that is not there."""
    read_text = Path.read_text

    def read(self: Path, *of: Any, **options: Any) -> str:
        if str(self).startswith("/proc/") and name in str(self):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return read_text(self, *of, **options)

    monkeypatch.setattr(Path, "read_text", read)


@pytest.mark.parametrize("name", ["mountinfo", "fdinfo"])
def test_where_mounts_are_not_told_the_device_of_the_file_stands_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place = tmp_path.stat()
    hidden(monkeypatch, name)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        told = stored_file._as_in_locks(descriptor)
    finally:
        os.close(descriptor)
    assert told == f"{os.major(place.st_dev):02x}:{os.minor(place.st_dev):02x}:{place.st_ino}"


@pytest.mark.usefixtures("as_on_btrfs")
@pytest.mark.parametrize("name", ["locks", "mountinfo"])
def test_what_the_kernel_does_not_tell_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    hidden(monkeypatch, name)
    assert in_use(tmp_path) == f"{tmp_path} is in use by another tokgate: another process"


def test_a_holder_that_the_kernel_does_not_tell_is_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another container, or where there is no /proc/locks."""
    monkeypatch.setattr("tokgate.host.stored_file.command_line", lambda pid: None)
    with (
        measured_into(tmp_path),
        pytest.raises(HostLocked, match="tokgate: another process\n"),
        measured_into(tmp_path),
    ):
        pass
