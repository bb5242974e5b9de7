"""The compiled sweep is made where it can be; where it cannot, Python reads and the audit says why."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.load.peers import QUICK, stream, workload
from tokgate.errors import HostFault, UsageFault
from tokgate.host import proc
from tokgate.load import library
from tokgate.load.client import measure
from tokgate.load.compiled import CompiledReader
from tokgate.load.library import Unavailable, loaded, made
from tokgate.load.measurement import Measurement
from tokgate.load.prompts import build

needs_compiler = pytest.mark.usefixtures("cc")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and the choice left to the client."""
    monkeypatch.setenv("TOKGATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TOKGATE_READER", raising=False)
    library._version.cache_clear()
    return tmp_path / "home"


def run(scripted, **options) -> Measurement:
    plan = workload(requests=2)
    measured = measure(scripted(lambda _: [stream(8)]).url, plan, build(plan), deadlines=QUICK, **options)
    assert [r.completion_tokens for r in measured.requests] == [8, 8]  # whoever reads
    return measured


def compiler(folder: Path, body: str) -> str:
    """A PATH with nothing but this ``cc``."""
    folder.mkdir()
    (folder / "cc").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "cc").chmod(0o755)
    return str(folder)


def files(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "lib").iterdir())


@needs_compiler
def test_the_compiled_reader_reads_where_it_can_be_had(scripted, home: Path) -> None:
    audits = [run(scripted).audit for _ in range(2)]
    assert [(a.reader, a.reader_reason) for a in audits] == [("c", "")] * 2
    (name,) = files(home)  # made once, nothing left beside it
    assert name.startswith("sweep-") and name.endswith(".so")


@needs_compiler
def test_several_workers_share_it(scripted) -> None:
    assert run(scripted, workers=2).audit.reader == "c"


def test_without_a_compiler_python_reads(scripted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    audit = run(scripted).audit
    assert (audit.reader, audit.reader_reason) == ("python", "there is no compiler 'cc' on this machine")
    with pytest.raises(HostFault, match="cannot be had: there is no compiler"):
        run(scripted, reader="c")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "echo 'sweep.c:1: error: out of cheese' >&2; exit 1",
            "exit code 1: sweep.c:1: error: out of cheese",
        ),
        ('test "$1" = --version || exit 3', "exit code 3: it says nothing"),
        ("exit 0", "No such file or directory"),  # says that it did, and wrote nothing
    ],
)
def test_a_compiler_that_fails(
    scripted, monkeypatch, tmp_path: Path, home: Path, body: str, reason: str
) -> None:
    monkeypatch.setenv("PATH", compiler(tmp_path / "bin", body))
    audit = run(scripted).audit
    assert audit.reader == "python" and reason in audit.reader_reason
    assert not home.exists() or files(home) == []


def test_a_compiler_that_hangs_while_it_compiles(scripted, monkeypatch, tmp_path: Path, home: Path) -> None:
    """Its version it tells; only the compilation has a short deadline, since even a shell may begin late."""
    monkeypatch.setenv("PATH", compiler(tmp_path / "bin", 'test "$1" = --version || exec /bin/sleep 60'))
    compile_ = library._compile

    def impatient(*arguments: object) -> bytes:
        monkeypatch.setattr("tokgate.load.library.COMPILE_S", 0.3)
        return compile_(*arguments)

    monkeypatch.setattr("tokgate.load.library._compile", impatient)
    reason = "did not end within 0.3 s"
    audit = run(scripted).audit
    assert audit.reader == "python" and reason in audit.reader_reason
    assert not home.exists() or files(home) == []


def test_a_compiler_that_hangs_is_killed_with_what_it_started_and_not_asked_again(
    scripted, monkeypatch, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    body = f"/bin/sleep 300 &\necho $! >> {pids}\necho $$ >> {pids}\nwait"
    monkeypatch.setenv("PATH", compiler(tmp_path / "bin", body))
    monkeypatch.setattr("tokgate.load.library.COMPILE_S", 3.0)
    told = {run(scripted).audit.reader_reason for _ in range(2)}
    assert told == {"compiler 'cc' did not end within 3 s and was killed"}
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2, "asked once, though two runs were measured"
    until = time.monotonic() + 20
    while (left := [pid for pid in started if alive(pid)]) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left


def test_a_compiler_that_ended_is_asked_again(scripted, monkeypatch, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("PATH", compiler(tmp_path / "bin", f"echo called >> {calls}; exit 1"))
    for _ in range(2):
        assert "exit code 1" in run(scripted).audit.reader_reason
    assert calls.read_text().split() == ["called"] * 2


def alive(pid: int) -> bool:
    process = proc.read(pid)
    return process is not None and process.alive


def test_a_library_that_does_not_load(scripted, monkeypatch, tmp_path: Path) -> None:
    """As on a file system without exec: whole, and the system refuses it."""
    body = 'while test $# -gt 0; do test "$1" = -o && echo no library > "$2"; shift; done'
    monkeypatch.setenv("PATH", compiler(tmp_path / "bin", body))
    audit = run(scripted).audit
    assert audit.reader == "python" and "it cannot be loaded" in audit.reader_reason
    with pytest.raises(HostFault, match="it cannot be loaded"):
        run(scripted, reader="c")


@needs_compiler
@pytest.mark.parametrize("damage", [b"", b"flip", b"cut"])
def test_a_damaged_library_is_made_again(scripted, home: Path, damage: bytes) -> None:
    run(scripted)
    (name,) = files(home)
    path = home / "lib" / name
    whole = path.read_bytes()
    bad = {b"flip": whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:], b"cut": whole[:-100]}.get(
        damage, damage
    )
    path.write_bytes(bad)
    with pytest.raises(Unavailable, match="is damaged"):
        loaded(path)
    assert run(scripted).audit.reader == "c"
    assert path.read_bytes() == whole


@needs_compiler
def test_damage_between_two_processes_is_seen_by_the_worker(scripted, monkeypatch, home: Path) -> None:
    def damaged(folder: Path, workplace: Path) -> Path:
        path = made(folder, workplace)
        path.write_bytes(b"\x7fELF" + bytes(100))
        return path

    monkeypatch.setattr("tokgate.load.library.made", damaged)
    audit = run(scripted).audit
    assert audit.reader == "python" and "is damaged" in audit.reader_reason


@needs_compiler
def test_another_source_is_another_library(monkeypatch, tmp_path: Path) -> None:
    first = made(tmp_path / "lib", tmp_path)
    changed = tmp_path / "sweep.c"
    changed.write_text(library.SOURCE.read_text().replace("TAIL = 192", "TAIL = 64"))
    monkeypatch.setattr("tokgate.load.library.SOURCE", changed)
    second = made(tmp_path / "lib", tmp_path)
    assert first != second and first.exists()
    with pytest.raises(Unavailable, match="layout"):
        CompiledReader(loaded(second), None, False)  # type: ignore[arg-type]


@needs_compiler
def test_code_is_not_loaded_from_where_others_write(scripted, home: Path) -> None:
    folder = home / "lib"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    audit = run(scripted).audit
    assert audit.reader == "python" and "not this user's alone" in audit.reader_reason
    folder.chmod(stat.S_IRWXU)
    assert run(scripted).audit.reader == "c"


@needs_compiler
def test_a_lenient_umask_does_no_harm(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        loaded(made(tmp_path / "home" / "lib", tmp_path))
    finally:
        os.umask(before)


@needs_compiler
def test_a_cache_that_cannot_be_written(scripted, home: Path) -> None:
    home.write_text("a file")
    audit = run(scripted).audit
    assert audit.reader == "python" and "Not a directory" in audit.reader_reason


MAKE = """
import sys, tempfile
from pathlib import Path
from tokgate.load.library import loaded, made
with tempfile.TemporaryDirectory() as workplace:
    sys.stdin.readline()
    print(loaded(made(Path(sys.argv[1]), Path(workplace)))._name)
"""


@needs_compiler
def test_makers_at_once_all_succeed(home: Path) -> None:
    command = [sys.executable, "-c", MAKE, str(home / "lib")]
    makers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for maker in makers:
        maker.stdin.write("go\n")
        maker.stdin.flush()
    found = {maker.communicate(timeout=60)[0] for maker in makers}
    assert [maker.returncode for maker in makers] == [0, 0, 0]
    assert len(found) == 1 and len(files(home)) == 1


@needs_compiler
def test_python_can_be_asked_for(scripted, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    audit = run(scripted, reader="python").audit
    assert (audit.reader, audit.reader_reason) == ("python", "asked for")
    monkeypatch.setenv("TOKGATE_READER", "python")
    assert run(scripted).audit.reader == "python"
    assert not home.exists()
    assert run(scripted, reader="c").audit.reader == "c"  # what the caller says counts more
    monkeypatch.setenv("TOKGATE_READER", "")
    assert run(scripted).audit.reader_reason != "asked for", "as if it were not set"
    monkeypatch.setenv("TOKGATE_READER", "rust")
    with pytest.raises(UsageFault, match=r"TOKGATE_READER=rust: expected auto, c, python"):
        run(scripted)


def test_the_source_is_shipped() -> None:
    assert library.SOURCE.is_file()
    assert os.access(library.SOURCE, os.R_OK)
    settings = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"**/*.c"' in settings
