"""``python -m tokgate``: the command line."""

import atexit
import os
import signal
import sys
from collections.abc import Iterable
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# As a shell has it, and every command that can be taken up: nothing can be said of what was not done.
INTERRUPTED = 130


class Told(BaseException):
    """A signal told this process to end. What it has opened is closed on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)


def main() -> None:
    """Entry point of the console script: runs a command, and ends in one line when a signal says so."""
    # A shell that starts a command in the background has it ignore some: that stays.
    heard = [n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, _tell)
    sys.unraisablehook = _tell_again
    # Registered first, so called last: from here on Python would take its handlers away.
    atexit.register(_hear_no_more, heard)
    try:
        from tokgate.cli import run

        code = run(sys.argv[1:])
    except Told as told:
        words = " ".join(("tokgate", *sys.argv[1:2]))
        print(f"{words}: ended by {told}", file=sys.stderr)
        code = INTERRUPTED
    for number in heard:
        # What is decided stays so: one that comes while Python ends only ends it sooner.
        signal.signal(number, lambda *_: os._exit(code))
    raise SystemExit(code)


def _hear_no_more(numbers: Iterable[signal.Signals]) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def _tell(number: int, frame: FrameType | None) -> None:
    # A second signal ends at once.
    signal.signal(number, signal.SIG_DFL)
    raise Told(number)


def _tell_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """A signal met in a callback or a destructor, from which nothing is raised: told again in a moment.

    Each import runs such a callback (it frees the module's lock): about two signals in a thousand that came while it
    imports would be shown as a traceback and lost.
    """
    told = unraisable.exc_value
    if not isinstance(told, Told):
        sys.__unraisablehook__(unraisable)
        return

    def again(number: int, frame: FrameType | None) -> None:
        raise told

    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, 0.001)


if __name__ == "__main__":
    main()
