"""``tokgate gate``: pytest perf_tests, with tokgate's exit codes instead of pytest's."""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from tokgate.cli.child import Child, Ended, forwarded
from tokgate.cli.interruption import INTERRUPTED, SIGNALS
from tokgate.errors import SampleFault, UsageFault
from tokgate.gate import engines, options
from tokgate.gate import setup as gate_setup
from tokgate.gate.results import read_run, read_verdicts
from tokgate.gate.share import Share, deal, left_out, numbers
from tokgate.gate.words import count
from tokgate.verdict import Verdict, exit_code

app = typer.Typer(add_completion=False, rich_markup_mode=None)

PYTEST_OK, PYTEST_FAILED = 0, 1
PYTEST_INTERRUPTED, PYTEST_INTERNAL, PYTEST_USAGE, PYTEST_NOTHING = 2, 3, 4, 5


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def gate(
    context: typer.Context,
    folder: Annotated[Path, typer.Option(help="the suite: a folder with perf_tests/")] = Path(),
    strict_inconclusive: Annotated[
        bool, typer.Option("--strict-inconclusive", help="an INCONCLUSIVE verdict fails")
    ] = False,
    gpus: Annotated[
        str, typer.Option(metavar="0,1", help="deal the profiles out over these GPUs of this host")
    ] = "",
) -> None:
    """Run the gate. Every other option and argument goes to pytest (pytest perf_tests --help lists them).

    Exit codes: 0 green, 1 a failed verdict, 2 usage or configuration, 3 environment, or nothing decided,
    130 interrupted before a verdict failed.
    """
    suite = folder / "perf_tests"
    if not suite.is_dir():
        raise UsageFault(
            f"no perf_tests/ in {folder.resolve()}",
            ["run tokgate gate in a checkout of the suite, or name it with --folder"],
        )
    arguments = _from_here(context.args)
    if not any(_names_a_test(folder, argument) for argument in arguments):
        arguments.insert(0, "perf_tests")
    if strict_inconclusive:
        arguments.append("--strict-inconclusive")
    given = _asked(folder, arguments)
    if gpus:
        code = _side_by_side(folder, arguments, given, numbers(gpus), strict_inconclusive)
    else:
        with forwarded([child := Child(folder, arguments)]):
            # Told of the verdicts before a signal could end us in place of the child.
            code = _exit_code([child.wait()], strict_inconclusive)
    raise SystemExit(code)


# Of pytest and of the suite: what they name is looked for from where tokgate was called, not from the suite.
_PATHS = ("--results", "--baselines", "--config-folder", "--junitxml", "--junit-xml")
# A name, or a path if there is one of that name.
_NAMES_OR_PATHS = ("--engine", "--model")


def _from_here(arguments: Sequence[str]) -> list[str]:
    """Arguments with the values of options that name files made absolute."""
    found: list[str] = []
    before = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if before in (*_PATHS, *_NAMES_OR_PATHS):
            found.append(_absolute(before, argument))
        elif equals and name in (*_PATHS, *_NAMES_OR_PATHS):
            found.append(f"{name}={_absolute(name, value)}")
        else:
            found.append(argument)
        before = argument
    return found


def _absolute(option: str, value: str) -> str:
    is_path = bool(value) and (option in _PATHS or Path(value).exists())
    return str(Path(value).absolute()) if is_path else value


def _names_a_test(folder: Path, argument: str) -> bool:
    """Whether an argument chooses tests: a path in the suite, not the value of an option."""
    path = (folder / argument.split("::")[0]).resolve()
    suite = (folder / "perf_tests").resolve()
    return not argument.startswith("-") and path.exists() and (path == suite or suite in path.parents)


def _side_by_side(
    folder: Path, arguments: list[str], given: argparse.Namespace, gpus: Sequence[int], strict: bool
) -> int:
    """One pytest a share of the GPUs; one summary and one exit code of all."""
    request, junit = _request(folder, given)
    setup = gate_setup.read(request)
    emulated = request.kind == "emulated" or (request.engine or "").startswith("emulated")
    shares = deal(setup, gpus, emulated=emulated)
    for share in shares:
        print(f"tokgate: GPU {share.name}: {', '.join(share.profiles)}", flush=True)
    ended: dict[str, Ended] = {}
    # Shares of one size have GPUs of their own; larger ones get theirs when those are free again.
    for _, side_by_side in groupby(shares, key=lambda share: len(share.gpus)):
        ended |= _wave(folder, arguments, list(side_by_side), junit)
        if any(end.status == PYTEST_INTERRUPTED or end.status < 0 for end in ended.values()):
            break
    with forwarded(()):
        _summary(ended, {**setup.not_applicable, **left_out(setup, gpus)}, request.results, strict)
        return _exit_code(list(ended.values()), strict)


def _wave(folder: Path, arguments: list[str], shares: Sequence[Share], junit: Path) -> dict[str, Ended]:
    """Shares side by side, until all have ended; by the share's name."""
    children = [
        Child(
            folder,
            [
                *arguments,
                f"--profiles={','.join(share.profiles)}",
                f"--junitxml={junit.with_name(f'{junit.stem}-gpu{share.name}{junit.suffix}')}",
            ],
            share,
            len(shares),
        )
        for share in shares
    ]
    ended: dict[int, Ended] = {}

    def follow(number: int) -> None:
        ended[number] = children[number].wait()

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(len(children))]
    with forwarded(children):
        for thread in threads:
            thread.start()
        for thread in threads:
            # Never for long at once: a signal is handled between two waits.
            while thread.is_alive():
                thread.join(0.5)
    return {share.name: ended[number] for number, share in enumerate(shares)}


def _asked(folder: Path, arguments: Sequence[str]) -> argparse.Namespace:
    """What the arguments for pytest ask of the gate.

    Raises:
        UsageFault: an option of the gate's is wrong; said here in one line, which pytest would not.
    """

    def of_pytest(parser: argparse.ArgumentParser) -> None:
        for name in ("--junitxml", "--junit-xml"):
            parser.add_argument(name)
        parser.add_argument("-m", dest="marker", default="")

    return options.parse(folder, arguments, of_pytest)


def _request(folder: Path, given: argparse.Namespace) -> tuple[gate_setup.Request, Path]:
    """What dealing out the profiles needs to know; and where JUnit's file goes."""
    results = (folder / given.results).resolve()
    junit = given.junitxml or given.junit_xml
    request = gate_setup.Request(
        folder=folder / given.config_folder,
        results=results,
        baselines=folder / given.baselines,
        kind=engines.kind_in(given.marker),
        engine=given.engine,
        profiles=_list(given.profiles or ""),
        workloads=_list(given.workloads or ""),
        model=given.model,
    )
    return request, (folder / junit).resolve() if junit else results / "junit.xml"


def _list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _summary(
    ended: Mapping[str, Ended], not_applicable: Mapping[str, str], results: Path, strict: bool
) -> None:
    from tokgate.report.terminal import summary_lines

    width = shutil.get_terminal_size().columns
    verdicts = [verdict for end in ended.values() for verdict in _verdicts(end)]
    lines = summary_lines(
        verdicts,
        not_applicable=not_applicable,
        folder=results,
        width=width,
        color=sys.stdout.isatty(),
        strict_inconclusive=strict,
    )
    title = f" tokgate: {count(len(ended), 'share')} "
    print(f"{title:=^{width}}", *lines, sep="\n")
    for name, end in ended.items():
        why = _cut_short(end).get("why") or f"pytest ended with {end.status}"
        print(f"GPU {name}: {why}; run: {end.run.name if end.run else 'none'}")


def _verdicts(end: Ended) -> list[Verdict]:
    if end.run is None:
        return []
    try:
        read_run(end.run)
        return read_verdicts(end.run)
    except SampleFault as fault:
        print(f"tokgate gate: {fault}", file=sys.stderr)
        return []


def _is_told(end: Ended) -> bool:
    """Whether every verdict that the run reached can be read: one that a full disk lost may be the one that counts."""
    if end.run is None:
        return False
    try:
        wanted, found = read_run(end.run).get("verdicts"), len(read_verdicts(end.run))
    except SampleFault:
        # Told where the verdicts themselves are asked for.
        return False
    if wanted != found:
        reached = "an unknown number" if wanted is None else wanted
        print(f"tokgate gate: {end.run} holds {found} of {reached} verdicts reached", file=sys.stderr)
    return wanted == found


def _exit_code(ended: Sequence[Ended], strict: bool) -> int:
    """pytest's exit statuses and the runs' verdicts -> tokgate's exit code."""
    killed = [128 - end.status for end in ended if end.status < 0 and -end.status not in SIGNALS]
    if killed:
        return max(killed)
    # A share of which nothing was selected has no say beside others.
    some = [end for end in ended if end.status != PYTEST_NOTHING]
    if not some or any(end.status == PYTEST_USAGE for end in some):
        return 2
    if all(end.status == PYTEST_OK and end.run is None for end in some):
        # Nothing was to be run: --collect-only, --help.
        return 0
    whole = [end for end in some if end.status in {PYTEST_OK, PYTEST_FAILED} and _is_told(end)]
    # Killed by one: it was told twice, or had its last words behind it.
    told = [end for end in some if end.status < 0]
    told += [
        end
        for end in some
        if end.status == PYTEST_INTERRUPTED and (end.interrupted or _cut_short(end).get("signal"))
    ]
    code = exit_code([v for end in some for v in _verdicts(end)], strict_inconclusive=strict)
    if code != 1 and told:
        return INTERRUPTED
    if len(whole) < len(some):
        return 1 if code == 1 else 3
    # A test that failed without a verdict is a fault of the suite: never green.
    failed = any(end.status == PYTEST_FAILED for end in whole)
    return max(code, 1) if failed and code == 0 else code


def _cut_short(end: Ended) -> Mapping[str, object]:
    """What a run says of its being cut short: by a signal that did not come by way of us, too."""
    if end.run is None:
        return {}
    try:
        told = read_run(end.run).get("interrupted")
    except SampleFault:
        return {}
    return told if isinstance(told, dict) else {}
