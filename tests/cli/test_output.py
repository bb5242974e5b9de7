"""Where a command's output goes: a full disk, a reader that goes away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GAIN = ("breakeven", "--baseline-tok-s=82", "--cycle-ms=30", "--accept-length=3.0")


def called(arguments: tuple[str, ...], stdout: int, unbuffered: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tokgate", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""},
    )


@pytest.mark.parametrize("unbuffered", [True, False])
@pytest.mark.parametrize("arguments", [("--help",), ("nope",), ("doctor",), GAIN], ids=lambda a: a[0])
def test_a_full_disk_under_the_output_is_one_line(arguments: tuple[str, ...], unbuffered: bool) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = called(arguments, full, unbuffered)
    finally:
        os.close(full)
    if arguments == ("nope",):  # says nothing there
        assert done.returncode == 2
    else:
        said = (done.returncode, done.stderr)
        assert said == (3, "tokgate: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize(("unbuffered", "code"), [(True, 1), (False, 0)], ids=["before", "after"])
def test_a_reader_that_is_gone_before_the_verdict_is_no_pass(unbuffered: bool, code: int) -> None:
    """And nothing to speak of; what was decided before it was missed stays decided."""
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = called(GAIN, writes, unbuffered)
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (code, "")


def test_the_control_is_quiet(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        done = called(GAIN, file.fileno(), unbuffered=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out").read_text().startswith("NET_GAIN")
