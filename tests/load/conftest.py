"""Peers for the measuring client: the C truth server, and a server that plays scripted bytes."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.load.peers import ROOT, Scripted, compiler
from tokgate.load.library import loaded, made


@pytest.fixture
def scripted() -> Iterator[Callable[[Callable[[int], list[object]]], Scripted]]:
    """Start scripted servers."""
    servers: list[Scripted] = []

    def start(script: Callable[[int], list[object]]) -> Scripted:
        servers.append(Scripted(script))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(params=["c", "python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What holds whoever reads."""
    if request.param == "c":
        compiler("the compiled reader cannot be made")
    monkeypatch.setenv("TOKGATE_READER", request.param)
    return str(request.param)


@pytest.fixture(scope="session")
def cc() -> str:
    """The C compiler."""
    return compiler("the compiled reader and the truth server cannot be made")


@pytest.fixture(scope="session")
def truth_binary(cc: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled truth server."""
    path = tmp_path_factory.mktemp("truth") / "truth_server"
    source = ROOT / "benchmarks" / "client" / "truth_server.c"
    subprocess.run([cc, "-O2", "-Wall", "-Wextra", "-Werror", "-o", path, source], check=True)
    return path


@pytest.fixture(scope="session")
def compiled_sweep(cc: str, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The compiled sweep."""
    folder = tmp_path_factory.mktemp("sweep")
    return loaded(made(folder / "lib", folder))


@contextmanager
def _truth(binary: Path, *options: str) -> Iterator[str]:
    with subprocess.Popen(
        [binary, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().split()[1]}"
        process.stdin.close()
        process.wait(5)


@pytest.fixture
def truth(truth_binary: Path) -> Callable[..., object]:
    """``with truth("--spec") as url``."""
    return lambda *options: _truth(truth_binary, *options)
