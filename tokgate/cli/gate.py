"""``tokgate gate``: pytest perf_tests, with tokgate's exit codes instead of pytest's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tokgate.errors import SampleFault, UsageFault
from tokgate.gate.results import RUN_FILE, read_run, read_verdicts
from tokgate.verdict import exit_code

app = typer.Typer(add_completion=False, rich_markup_mode=None)

PYTEST_INTERRUPTED, PYTEST_INTERNAL, PYTEST_USAGE, PYTEST_NOTHING = 2, 3, 4, 5


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def gate(
    context: typer.Context,
    folder: Annotated[Path, typer.Option(help="the suite: a folder with perf_tests/")] = Path(),
    strict_inconclusive: Annotated[
        bool, typer.Option("--strict-inconclusive", help="an INCONCLUSIVE verdict fails")
    ] = False,
) -> None:
    """Run the gate. Every other option and argument goes to pytest (pytest perf_tests --help lists them).

    Exit codes: 0 green, 1 a failed verdict, 2 usage or configuration, 3 environment or inconclusive.
    """
    suite = folder / "perf_tests"
    if not suite.is_dir():
        raise UsageFault(
            f"no perf_tests/ in {folder.resolve()}",
            ["run tokgate gate in a checkout of the suite, or name it with --folder"],
        )
    arguments = list(context.args)
    if not any(_names_a_test(folder, argument) for argument in arguments):
        arguments.insert(0, "perf_tests")
    if strict_inconclusive:
        arguments.append("--strict-inconclusive")
    with tempfile.TemporaryDirectory(prefix="tokgate-") as scratch:
        run_file = Path(scratch) / "run"
        status = _pytest(folder, arguments, run_file)
        run = Path(run_file.read_text(encoding="utf-8")) if run_file.is_file() else None
    raise SystemExit(_exit_code(status, run, strict_inconclusive))


def _names_a_test(folder: Path, argument: str) -> bool:
    """Whether an argument chooses tests: a path in the suite, not the value of an option."""
    path = (folder / argument.split("::")[0]).resolve()
    suite = (folder / "perf_tests").resolve()
    return not argument.startswith("-") and path.exists() and (path == suite or suite in path.parents)


def _pytest(folder: Path, arguments: list[str], run_file: Path) -> int:
    """Run pytest as a child, so that a signal to us reaches it and its servers are torn down by it."""
    command = [sys.executable, "-m", "pytest", *arguments]
    child = subprocess.Popen(command, cwd=folder, env={**os.environ, RUN_FILE: str(run_file)})

    def forward(number: int, _: object) -> None:
        child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP)}
    # A terminal sends Ctrl-C to the child too; we only wait for it to clean up.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_code(status: int, run: Path | None, strict: bool) -> int:
    """pytest's exit status and the run's verdicts -> tokgate's exit code."""
    if status < 0:
        return 128 - status
    if status in {PYTEST_USAGE, PYTEST_NOTHING}:
        return 2
    if status in {PYTEST_INTERRUPTED, PYTEST_INTERNAL} or run is None:
        return 3
    try:
        read_run(run)
        verdicts = read_verdicts(run)
    except SampleFault as fault:
        print(f"tokgate gate: {fault}", file=sys.stderr)
        return 3
    code = exit_code(verdicts, strict_inconclusive=strict)
    # A test that failed without a verdict is a fault of the suite: never green.
    return max(code, 1) if status == 1 and code == 0 else code
