"""A measurement that a signal ends: in order, and with the words that take it up again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

INTERRUPTED = 130
"""Exit code of a run that was asked to end, as of a shell."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def terminable(command: str, folder: Path) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP end a run in order: servers stopped, reports written, how to go on told.

    Args:
        command: of tokgate; ``<command>.json`` in the folder says that it can be taken up.
        folder: where it keeps what it measured.

    Raises:
        Exit: with 130, when a signal came.
    """
    came: list[int] = []

    def stop(number: int, frame: object) -> None:
        came.append(number)
        # A second signal ends at once.
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    # A shell that starts a command in the background has it ignore some: that stays.
    before = {n: was for n in SIGNALS if (was := signal.getsignal(n)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(go_on(command, folder), err=True)
        name = signal.Signals(came[0] if came else signal.SIGINT).name
        typer.echo(f"tokgate {command}: ended by {name}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def go_on(command: str, folder: Path) -> str:
    """The command that takes it up, if there is anything to be taken up."""
    if not (folder / f"{command}.json").is_file():
        return "nothing was measured yet"
    name = folder.name if folder.parent == Path("results") else folder
    return f"what was measured is kept; go on: tokgate {command} --resume {name}"
