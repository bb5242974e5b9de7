"""The command line: ``tokgate COMMAND ...``.

Each command is a typer application in a module of its own, imported only when it is called, so that
``tokgate --help`` answers at once. Exit codes: 0 green, 1 a failed verdict, 2 usage or configuration,
3 environment, or nothing decided.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokgate import __version__
from tokgate.errors import TokgateError


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command's typer application ``app`` is defined, and its one-line help."""

    module: str
    help: str


COMMANDS: Mapping[str, Command] = {
    "accept": Command("tokgate.cli.accept", "record a run as stored baselines, with a reason"),
    "bench": Command("tokgate.cli.bench", "measure any running server with tokgate's client"),
    "bisect": Command("tokgate.cli.bisect", "which SGLang version, or commit, made it slow or made it hang"),
    "breakeven": Command(
        "tokgate.cli.breakeven", "whether speculation pays: break-even accept length, nearer lever"
    ),
    "doctor": Command("tokgate.cli.doctor", "examine the host: is it fit to measure on, what mends it"),
    "env": Command("tokgate.cli.env", "make and list the environments that engines run in"),
    "explain": Command("tokgate.cli.explain", "what an SGLang log says: phases, captures, rates, faults"),
    "gate": Command("tokgate.cli.gate", "run the gate: pytest perf_tests, with tokgate's exit codes"),
    "model": Command("tokgate.cli.model", "make, verify and question synthetic target + draft pairs"),
    "parity": Command("tokgate.cli.parity", "look for a case on which two running servers differ"),
    "reap": Command("tokgate.cli.reap", "end what a killed tokgate left running"),
    "bump": Command("tokgate.cli.bump", "two SGLang versions on one GPU: is the new one as fast?"),
    "calibrate": Command(
        "tokgate.cli.calibrate", "the noise of a host: measure or pool A/A launches, show the power"
    ),
    "judge": Command("tokgate.cli.judge", "judge stored measurements of two builds, with no GPU"),
    "serve": Command("tokgate.cli.serve", "run the emulated engine by hand"),
}

UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})

USAGE = "usage: tokgate COMMAND [OPTIONS] ...   (tokgate COMMAND --help tells more)"


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Faults are printed as messages, never as tracebacks.

    Args:
        arguments: without the program's name.
    """
    code = 1
    try:
        code = _dispatch(arguments)
        # `>&-`: a command line without an output has none to flush.
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output went away (`tokgate ... | head`): nothing to say. What is decided stays so; else
        # the code is typer's for this, and never a 0 that no verdict gave.
        _drop_output()
    except OSError as error:
        # With a file name it is about that file, which a command tells by itself.
        if error.filename is not None or error.errno not in UNWRITABLE:
            raise
        _drop_output()
        print(f"tokgate: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 3
    return code


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(overview())
        return 0 if arguments else 2
    if arguments[0] in {"-V", "--version"}:
        print(f"tokgate {__version__}")
        return 0
    name, *rest = arguments
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean 'tokgate {near[0]}'?" if near else "tokgate --help lists the commands"
        print(f"tokgate: no command '{name}'; {hint}", file=sys.stderr)
        return 2
    try:
        result = importlib.import_module(command.module).app(
            args=rest, prog_name=f"tokgate {name}", standalone_mode=True
        )
    except TokgateError as error:
        print(f"tokgate {name}: {error}", file=sys.stderr)
        return error.exit_code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return result if isinstance(result, int) else 0


def _drop_output() -> None:
    """What is still buffered goes nowhere, so that the interpreter does not stumble over it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def overview() -> str:
    """The text of ``tokgate --help``."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [USAGE, "", "Regression gate for LLM inference speed on SGLang.", "", "commands:", *lines]
    )
