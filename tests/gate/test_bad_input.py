"""Bad input: one clear line, the right exit code, no traceback, nothing lost, no process left."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gate.runs import ROOT, tokgate
from tokgate.gate import options


def configuration(folder: Path, **replacements: tuple[str, str]) -> Path:
    """A copy of the shipped configuration with a replacement in some files."""
    for name in ("profiles", "workloads", "gate"):
        text = (ROOT / "perf_tests" / f"{name}.yaml").read_text()
        old, new = replacements.get(name, ("", ""))
        assert old in text
        (folder / f"{name}.yaml").write_text(text.replace(old, new, 1))
    return folder


def run(results: Path, *arguments: str) -> tuple[int, str]:
    done = tokgate("gate", "perf_tests", "-p", "no:cacheprovider", f"--results={results}", *arguments)
    output = done.stdout + done.stderr
    assert "Traceback" not in output, output
    return done.returncode, output


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--profiles=basline"], r"no profile 'basline' in .*; did you mean 'baseline'\?"),
        (["--workloads=chat-bs2"], r"no workload 'chat-bs2'"),
        (["--engine=nonesuch"], r"no engine named 'nonesuch'"),
        (["-m", "gpu and cpu"], r"names several engines: gpu, cpu"),
        (["-n", "2"], r"cannot run under pytest-xdist"),
        (["--engine=emulated:foundling"], r"no scenario 'foundling'; did you mean 'founding'\?"),
        (["--engine=emulated:"], r"names no scenario"),
        (["--engine-fault=nonsense"], r"--engine-fault: .*nonsense"),
        (["--engine-fault=basline=slow:2"], r"no profile 'basline'"),
        (["--runs=0"], r"'0' is not a whole number from 1 to 1000"),
        (["--profiles="], r"given without a name"),
        (["--baselines=pyproject.toml"], r"is not a folder"),
        (["-k", "nothing_of_that_name"], r"deselected"),
        (["-p", "no:benchmark"], r"pytest-benchmark, which is switched off"),
        (["--startup-repeats=0"], r"'0' is not a whole number from 1 to 10000"),
        (["--zzz"], r"unrecognized arguments: --zzz"),
    ],
)
def test_options_that_mean_nothing_exit_2(arguments: list[str], line: str, tmp_path: Path) -> None:
    code, output = run(tmp_path, *arguments)
    assert re.search(line, output), output
    assert code == 2, output


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("--runs=x", "--runs: 'x' is not a whole number from 1 to 10000"),
        ("--budget-minutes=soon", "--budget-minutes: 'soon' is not a number"),
        ("--profiles", "--profiles: expected one argument"),
        ("--runz=3", "unknown option --runz: did you mean --runs?"),
    ],
)
def test_a_wrong_option_is_one_line_without_pytests_usage(argument: str, line: str) -> None:
    done = tokgate("gate", argument)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"tokgate gate: {line}\n")


@pytest.mark.parametrize(
    "arguments", ["-x --runxfail --co", "-k foo -m gpu", "--trace --color=no", "--runs=3 a::b"]
)
def test_options_of_pytest_are_left_to_it(arguments: str) -> None:
    given = options.parse(ROOT, arguments.split(), lambda parser: None)
    assert given.runs in (None, 3)


def test_a_faulty_file_lists_its_faults_and_exits_2(tmp_path: Path) -> None:
    folder = configuration(
        tmp_path, profiles=("cuda_graphs: on", "cuda_graph: on"), gate=("unit: tok/s, ", "")
    )
    code, output = run(tmp_path / "results", f"--config-folder={folder}")
    assert code == 2
    assert "metrics.output_tok_s.unit: is missing" in output
    (folder / "gate.yaml").write_text((ROOT / "perf_tests/gate.yaml").read_text())
    code, output = run(tmp_path / "results", f"--config-folder={folder}")
    assert code == 2
    assert "profiles.baseline.cuda_graph: unknown key; did you mean 'cuda_graphs'?" in output
    assert not (tmp_path / "results").exists()


def test_a_gate_that_a_worker_of_xdist_starts_is_a_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest-benchmark takes the worker's variables for its own session: a warning, which is an error here."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
    code, output = run(tmp_path / "results", "-k", "nothing_of_that_name")
    assert "deselected" in output
    assert code == 2


def test_a_missing_interpreter_is_the_hosts_fault(tmp_path: Path) -> None:
    engine = tmp_path / "engine.yaml"
    engine.write_text("kind: cpu\nversion: 0.5.23\npython: /nowhere/bin/python\n")
    model = tmp_path / "model"
    for part in ("target", "draft"):
        (model / part).mkdir(parents=True)
        (model / part / "config.json").write_text("{}")
    code, output = run(
        tmp_path / "results",
        f"--engine={engine}",
        f"--model={model}",
        "--profiles=baseline",
        "-k=startup",
    )
    assert "UNFIT startup[baseline] the engine's interpreter /nowhere/bin/python does not exist" in output
    assert code == 3


def test_a_missing_model_is_the_hosts_fault(tmp_path: Path) -> None:
    engine = tmp_path / "engine.yaml"
    engine.write_text(f"kind: cpu\nversion: 0.5.23\npython: {sys.executable}\n")
    folder = configuration(
        tmp_path,
        profiles=(
            "  pair-small: {synthetic: {preset: small, accept_length: 4.0}}",
            "  pair-small: {target: /no/model}",
        ),
    )
    code, output = run(
        tmp_path / "results",
        f"--engine={engine}",
        f"--config-folder={folder}",
        "--profiles=baseline",
        "-k=startup",
    )
    assert "UNFIT startup[baseline] the model of --model-path does not exist: /no/model" in output
    assert code == 3


def test_an_engine_that_dies_at_once_is_quoted(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--engine-flag=--no-such-flag", "--profiles=baseline", "-k=startup")
    assert re.search(r"EXITED startup\[baseline\] \w+: exit code 2 .*--no-such-flag", output), output
    assert code == 1


def test_a_results_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, output = run(tmp_path / "file" / "results", "--profiles=baseline", "-k=startup")
    assert "results cannot be written" in output or "cannot be made" in output
    assert code == 3


@pytest.mark.skipif(
    shutil.which("unshare") is None, reason="needs unshare (util-linux) to mount a small disk"
)
def test_a_full_disk_is_said_and_what_was_written_stays(tmp_path: Path) -> None:
    """A disk just above the log's reserve of a megabyte: the Samples of many runs do not fit."""
    command = [
        "unshare", "--mount", "--map-root-user", "sh", "-c",
        'mount -t tmpfs -o size=1150k none "$0" && "$@"; code=$?; cp -r "$0/latest/samples" "$0/../kept"; exit $code',
        str(tmp_path / "small"),
        sys.executable, "-m", "tokgate", "gate", "perf_tests", "-p", "no:cacheprovider",
        f"--results={tmp_path / 'small'}", "--engine=emulated:steady", "--profiles=baseline", "--runs=400",
        "--workloads=chat-bs8", "-k=throughput",
    ]  # fmt: skip
    (tmp_path / "small").mkdir()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    output = done.stdout + done.stderr
    if "unshare failed" in output or "mount:" in output:
        pytest.skip(f"a small disk cannot be mounted here: {output.splitlines()[0]}")
    assert "No space left on device" in output
    assert "Traceback" not in output
    assert done.returncode == 3, output
    assert list((tmp_path / "kept").rglob("*.sample.json"))


def test_a_damaged_baseline_is_refused_before_anything_starts(tmp_path: Path) -> None:
    stored = tmp_path / "baselines" / "emulated-steady" / "baseline"
    stored.mkdir(parents=True)
    (stored / "chat-bs1.yaml").write_text("schema: 1\nidentity: {engine: 7}\n")
    code, output = run(
        tmp_path / "results",
        "--engine=emulated:steady",
        "--profiles=baseline",
        "--workloads=chat-bs1",
        f"--baselines={tmp_path / 'baselines'}",
    )
    assert code == 2
    assert re.search(r"chat-bs1\.yaml:2: identity\.engine", output), output
    assert not list((tmp_path / "results").glob("*/run.json"))


def test_paths_are_the_callers_whatever_the_folder(tmp_path: Path) -> None:
    """And what -k leaves out is said when the run is accepted; JUnit's file is named where it is."""
    done = subprocess.run(
        [
            sys.executable, "-m", "tokgate", "gate", f"--folder={ROOT}", "-p", "no:cacheprovider",
            "--results=mine", "--engine=emulated:steady", "--profiles=baseline", "-k=startup and not startup_time",
        ],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = (path.parent for path in (tmp_path / "mine").glob("2*/run.json"))
    assert (found / "junit.xml").is_file()
    assert f"generated xml file: {found / 'junit.xml'}" in done.stdout
    accepted = tokgate(
        "accept",
        "latest",
        f"--results={tmp_path / 'mine'}",
        f"--baselines={tmp_path / 'b'}",
        "--reason=first",
    )
    assert re.search(
        r"not the whole gate: \d+ tests were left out .*test_throughput \(\d+\)", accepted.stdout
    )
