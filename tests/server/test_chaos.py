"""Whatever is killed, stopped or starved at whatever moment: an error or a server, and nothing left."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.launches import floors, spec_of_fake
from tokgate.errors import TokgateError
from tokgate.host import marker, ports, proc
from tokgate.host.lock import GpuLocks
from tokgate.server.launch import LaunchSpec, start

MOMENTS = ("none", "spawn", "imports", "weights", "kv", "capture", "warmup", "generate", "stream")
ACTIONS = ("hang", "stop", "raise", "silent-exit", "segv", "detach", "sleep")


@dataclass(frozen=True)
class Blow:
    """What is done to which process of the launch, so long after its spawn."""

    after_s: float
    to: str
    how: str


blows = st.builds(
    Blow,
    st.floats(0.05, 1.0),
    st.sampled_from(("root", "worker", "any")),
    st.sampled_from(("SIGKILL", "SIGSTOP", "SIGTERM", "SIGABRT", "starve")),
)
scenarios = st.tuples(
    st.sampled_from(MOMENTS),
    st.sampled_from(ACTIONS),
    st.sampled_from(("heed", "ignore")),
    st.lists(blows, max_size=2),
    st.booleans(),
)


def _strike(spec: LaunchSpec, blow: Blow, over: threading.Event) -> None:
    """Hit processes of this launch alone: they are known by the port in their command line."""
    over.wait(blow.after_s)
    for process in proc.table().values():
        environment = proc.environment(process.pid) or {}
        if environment.get("CHAOS_PORT") != str(spec.port) or over.is_set():
            continue
        is_root = process.session == process.pid
        if blow.to == "any" or (blow.to == "root") == is_root:
            if blow.how == "starve":
                proc.send(process, signal.SIGSTOP)
                over.wait(0.3)
                proc.send(process, signal.SIGCONT)
            else:
                proc.send(process, signal.Signals[blow.how])


def _one_launch(scenario: tuple[str, str, str, list[Blow], bool]) -> None:
    moment, action, term, hits, interrupt = scenario
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = spec_of_fake(
            folder, {"deadlines": floors(0.8, 10), "teardown_s": 0.5}, **{moment: action, "term": term}
        )
        port = spec.port
        spec = replace(spec, env={"CHAOS_PORT": str(port)})
        over = threading.Event()
        threads = [threading.Thread(target=_strike, args=(spec, blow, over)) for blow in hits]
        for thread in threads:
            thread.start()

        def announce(phase: str) -> None:
            if interrupt and phase.startswith("capture"):
                raise KeyboardInterrupt

        try:
            with GpuLocks([f"chaos-{port}"], wait_s=5), start(spec, announce) as server:
                time.sleep(random.random() * 0.2)
                server.ensure_alive()
        except TokgateError as error:
            assert error.headline and "\n" not in error.headline
        except KeyboardInterrupt:
            assert interrupt
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert [p for p in proc.table().values() if _belongs(p, port)] == []
        assert ports.is_free(port)
        assert {path.name for path in folder.iterdir()} <= {"logs", "forensics", "locks"}
        assert {path.suffix for path in folder.rglob("*") if path.is_file()} <= {".log", ".txt"}
        assert list(Path(os.environ["TOKGATE_RUNTIME_DIR"]).iterdir()) == []


def _belongs(process: proc.Process, port: int) -> bool:
    return process.alive and f"CHAOS_PORT={port}".encode() in proc.environment_bytes(process.pid)


def _run(examples: int, *, derandomize: bool) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=derandomize,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(scenarios)
    def chaos(scenario: tuple[str, str, str, list[Blow], bool]) -> None:
        _one_launch(scenario)

    _one_launch(("none", "hang", "heed", [], False))  # opens what stays open: the reaper's pipe
    descriptors, threads = _open_descriptors(), threading.active_count()
    chaos()
    assert _open_descriptors() == descriptors
    assert threading.active_count() == threads
    assert marker.MARK not in os.environ


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Locks and temporary files of these tests alone; after them no file is left."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TOKGATE_RUNTIME_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list((tmp_path / "locks").iterdir()) == []


def test_chaos() -> None:
    _run(8, derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_chaos_200_times() -> None:
    _run(200, derandomize=False)
