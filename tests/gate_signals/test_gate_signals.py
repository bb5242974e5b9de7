"""However a gate ends, nothing that it started survives: Ctrl-C, SIGTERM, SIGKILL, a full disk."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tokgate.gate.ending import UNTOLD
from tokgate.gate.results import find_run, read_run, read_verdicts
from tokgate.host import marker, proc

ROOT = Path(__file__).parents[2]
TRIAL = "GATE_TRIAL"
LONG = (
    "--engine=emulated:steady",
    "--profiles=baseline",
    "--workloads=chat-bs8",
    "--runs=2000",
    "-k=throughput",
)


def _of(trial: str) -> list[proc.Process]:
    """All living processes of a trial, pytest's and the servers'."""
    needle = f"{TRIAL}={trial}".encode()
    return [
        process
        for process in proc.table().values()
        if process.alive and needle in proc.environment_bytes(process.pid).split(b"\0")
    ]


def _engines(trial: str) -> list[proc.Process]:
    """Those that a launch of tokgate marked: what ``tokgate reap`` would look at."""
    ours = {process.pid for process in _of(trial)}
    return [item.process for item in marker.find_all() if item.process.pid in ours]


def _files(folder: Path) -> list[Path]:
    """Temporary files; the folder of locks stays, and must be empty."""
    return [path for path in folder.iterdir() if path.name != "locks" or list(path.iterdir())]


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@dataclass
class Gate:
    """A gate under way, its server measured."""

    trial: str
    process: subprocess.Popen[bytes]
    results: Path
    log: Path
    temporary: Path

    def ended(self) -> int:
        """Its exit code, once nothing of it is left: no process, no temporary file, no lock."""
        code = self.process.wait(60)
        gone = _within(30, lambda: not _of(self.trial))
        left = {process.pid: proc.command_line(process.pid) for process in _of(self.trial)}
        assert gone, left
        assert not [m for m in marker.find_all() if m.process.pid in left]
        assert _within(10, lambda: not _files(self.temporary)), _files(self.temporary)
        return code


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Gate]]:
    """Starts a long gate and returns while it measures."""

    begun: list[Gate] = []

    def make(*command: str, more: tuple[str, ...] = ()) -> Gate:
        trial = uuid.uuid4().hex
        results, log, temporary = tmp_path / "results", tmp_path / "output", tmp_path / "tmp"
        temporary.mkdir()
        places = {"TMPDIR": str(temporary), "TOKGATE_RUNTIME_DIR": str(temporary / "locks")}
        arguments = [*command, "perf_tests", "-p", "no:cacheprovider", f"--results={results}", *LONG, *more]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                env={**os.environ, TRIAL: trial, **places},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        gate = Gate(trial, process, results, log, temporary)
        begun.append(gate)
        measuring = _within(60, lambda: any(results.glob("*/samples/baseline/chat-bs8/*.json")))
        assert measuring, log.read_text()
        # The control: there is something to survive, and to be left.
        assert len(_engines(trial)) >= 3 and _within(10, lambda: bool(_files(temporary)))
        return gate

    yield make
    for gate in begun:
        for process in _of(gate.trial):
            proc.send(process, signal.SIGKILL)
        gate.process.wait(30)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("number", "to", "judged"),
    [
        (signal.SIGINT, "group", 0),
        (signal.SIGINT, "process", 1),
        (signal.SIGTERM, "process", 1),
        pytest.param(signal.SIGTERM, "group", 0, marks=SLOW),
        pytest.param(signal.SIGHUP, "process", 1, marks=SLOW),
    ],
)
def test_a_gate_that_is_told_to_stop_leaves_nothing(
    begin: Callable[..., Gate], number: signal.Signals, to: str, judged: int
) -> None:
    """To the whole group as a terminal does, and to tokgate alone as a CI runner does; while servers are measured in
    the background, and in the foreground, as on a GPU, where a test has its verdict before the next one measures."""
    first_test = "-k=(startup and not startup_time and not memory) or throughput"
    gate = begin("tokgate", "gate", more=("--start-together=2", first_test) if judged else ())
    run = find_run(gate.results, "latest")
    assert len(read_verdicts(run)) == judged, gate.log.read_text()
    if to == "group":
        os.killpg(gate.process.pid, number)
    else:
        gate.process.send_signal(number)
    code = gate.ended()
    said = gate.log.read_text()
    assert code == 130, said
    # One line of its own, and nothing of where in the code it was met.
    assert f" tokgate: ended by {number.name} " in said
    assert "KeyboardInterrupt" not in said and ".py:" not in said.partition("=\n")[2].replace(".py::", "")
    # What looks green of it says first that it is not whole.
    line = f"interrupted by {number.name}: {judged} of {judged + 3} tests judged; again: tokgate gate perf_tests "
    assert f"\n{line}" in said
    first = (run / "report.md").read_text().partition("\n")[0]
    assert first.startswith(f"# tokgate: {line}") and "--runs=2000" in first
    facts = read_run(run)
    assert facts["status"] == "interrupted"
    assert facts["interrupted"]["signal"] == number.name
    assert (facts["interrupted"]["tests_judged"], facts["interrupted"]["tests_not_judged"]) == (judged, 3)
    (suite,) = ElementTree.parse(run / "junit.xml").getroot()
    assert (suite.attrib["errors"], suite.attrib["tests"]) == ("1", str(judged + 1)), suite.attrib
    *whole, cut = suite.findall("testcase")
    assert [case.attrib["name"] for case in whole] == ["test_startup[baseline]"][:judged]
    assert not any(case.find("error") for case in whole)
    assert cut.attrib["name"] == "test_throughput[baseline-chat-bs8]"
    (error,) = cut.findall("error")
    assert line in error.attrib["message"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after_s", [0.3, pytest.param(1.0, marks=SLOW), pytest.param(2.0, marks=SLOW)])
def test_a_gate_that_is_stopped_in_its_first_seconds_says_so(
    tmp_path: Path, number: signal.Signals, after_s: float
) -> None:
    """While it, or its pytest, still imports: no traceback, nothing left."""
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "tokgate", "gate", "-p", "no:cacheprovider", f"--results={tmp_path}", *LONG],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    # Until it has its handlers, which comes before any import of weight. Python itself catches SIGINT alone.
    assert _within(20, lambda: _catches(process.pid, signal.SIGTERM))
    time.sleep(after_s)
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output and "KeyboardInterrupt" not in output
    assert f"ended by {number.name}" in output
    assert not list((tmp_path / "tmp").iterdir())
    # Nothing of a run that was not begun; one that was has all in its folder.
    assert not list(tmp_path.glob("*.xml"))


LATE = """
import os, signal, time

def tell(kill=os.kill, parent=os.getppid(), sleep=time.sleep):
    # Long enough that tokgate passes it on while we are here.
    kill(parent, 15)
    sleep(1)

class Last:
    def __del__(self, tell=tell):
        tell()

def pytest_sessionfinish():
    if os.environ["WHEN"] == "session":
        tell()

last = Last() if os.environ["WHEN"] == "python" else None
"""


@pytest.mark.parametrize("when", ["session", pytest.param("python", marks=SLOW)])
def test_a_gate_whose_verdicts_are_reached_keeps_its_exit_code(tmp_path: Path, when: str) -> None:
    """While the session is closed, and while Python ends: a verdict had failed (no stored baseline), so 1."""
    (tmp_path / "late.py").write_text(LATE)
    done = subprocess.run(
        [
            sys.executable, "-m", "tokgate", "gate", "perf_tests", "-p", "late", "-p", "no:cacheprovider",
            f"--results={tmp_path / 'r'}", f"--baselines={tmp_path / 'b'}", "--engine=emulated:steady",
            "--profiles=baseline", "--workloads=chat-bs1", "--runs=1", "-k=throughput",
        ],
        cwd=ROOT, env={**os.environ, "WHEN": when, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    run = find_run(tmp_path / "r", "latest")
    assert {verdict.kind for verdict in read_verdicts(run)} == {"MISSING"}, done.stdout
    assert read_run(run)["status"] == "complete"
    assert (run / "junit.xml").is_file() and "ended by SIGTERM" not in done.stdout + done.stderr


def test_a_gate_that_is_killed_leaves_nothing(begin: Callable[..., Gate]) -> None:
    """Its pytest is interrupted by the kernel when tokgate dies, and ends its servers."""
    gate = begin("tokgate", "gate")
    gate.process.kill()
    assert gate.ended() == -signal.SIGKILL
    assert read_run(find_run(gate.results, "latest"))["status"] == "interrupted"


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, marks=SLOW), pytest.param(signal.SIGTERM, marks=SLOW), signal.SIGKILL],
)
def test_a_pytest_of_its_own_leaves_nothing(begin: Callable[..., Gate], number: signal.Signals) -> None:
    gate = begin("pytest")
    run = find_run(gate.results, "latest")
    assert read_run(run)["status"] == "running"
    gate.process.send_signal(number)
    assert gate.ended() != 0
    assert read_run(run)["status"] == (UNTOLD if number == signal.SIGKILL else "interrupted")


def test_a_second_signal_does_not_leave_a_run_that_says_it_goes_on(begin: Callable[..., Gate]) -> None:
    """It ends pytest at once; tokgate, which waits for it, says so in its stead."""
    gate = begin("tokgate", "gate")
    run = find_run(gate.results, "latest")
    (suite,) = [p for p in _of(gate.trial) if "-m pytest" in (proc.command_line(p.pid) or "")]
    gate.process.send_signal(signal.SIGTERM)
    # The first one has come when its handler is gone: what is there to end it now is the kernel.
    assert _within(20, lambda: not _catches(suite.pid, signal.SIGTERM))
    gate.process.send_signal(signal.SIGTERM)
    assert gate.ended() == 130
    facts = json.loads((run / "run.json").read_text())
    assert facts["status"] == "interrupted"
    assert facts["interrupted"]["why"] in {"ended at once by SIGTERM", "interrupted by SIGTERM"}


IMPATIENT = """
import os, signal

def pytest_keyboard_interrupt():
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_second_signal_does_not_make_a_cut_run_complete(
    begin: Callable[..., Gate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ctrl-C while pytest meets the first one: it tells nobody any more that it was interrupted."""
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    gate = begin("pytest", more=("-p", "impatient"))
    gate.process.send_signal(signal.SIGINT)
    assert gate.ended() != 0
    assert "KeyboardInterrupt" in gate.log.read_text(), "the control: the second one came"
    facts = read_run(find_run(gate.results, "latest"))
    assert facts["status"] == "interrupted" and facts["interrupted"]["signal"] == "SIGINT"


@SLOW
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare (util-linux) for a small disk")
def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    trial = uuid.uuid4().hex
    (tmp_path / "small").mkdir()
    done = subprocess.run(
        [
            "unshare", "--mount", "--map-root-user", "sh", "-c",
            'mount -t tmpfs -o size=1250k none "$0" && exec "$@"', str(tmp_path / "small"),
            sys.executable, "-m", "tokgate", "gate", "perf_tests", "-p", "no:cacheprovider",
            f"--results={tmp_path / 'small'}", *LONG,
        ],
        cwd=ROOT, env={**os.environ, TRIAL: trial}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    output = done.stdout + done.stderr
    if "unshare failed" in output or "mount:" in output:
        pytest.skip(f"a small disk cannot be mounted here: {output.splitlines()[0]}")
    assert done.returncode == 3 and "No space left on device" in output, output
    assert _within(30, lambda: not _of(trial)), _of(trial)


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal; one that is gone has none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)
