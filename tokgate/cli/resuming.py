"""What may be asked anew of a measurement that is taken up again, and how a user is told to take one up."""

from __future__ import annotations

from collections.abc import Collection

import typer

from tokgate.errors import UsageFault


def only_with_resume(context: typer.Context, allowed: Collection[str]) -> None:
    """Refuse options that would change what was asked: stored blocks answer the question of before.

    Args:
        allowed: parameters of this call alone: budgets, where to look, what is printed.

    Raises:
        UsageFault: names the options that were given and are not ``allowed``.
    """
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in allowed and is_given(context, parameter.name or "")
    ]
    if given:
        raise UsageFault(
            f"{', '.join(given)}: not together with --resume, which goes on with what was asked before",
            ["for another question start anew, without --resume"],
        )


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option stood on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def more_blocks(context: typer.Context, blocks: int, before: int) -> int:
    """The most blocks of a measurement that is taken up: ``--blocks`` where it was given, else as before.

    Raises:
        UsageFault: fewer than before; what was judged by them would be judged by another plan.
    """
    if not is_given(context, "blocks"):
        return before
    if blocks < before:
        raise UsageFault(f"--blocks {blocks}: it was begun with {before}; --resume can only allow more")
    return blocks


def share(option: str, value: float | None) -> None:
    """Check a share of memory.

    Raises:
        UsageFault: not above 0 and at most 1.
    """
    if value is not None and not 0 < value <= 1:
        raise UsageFault(f"{option} is a share above 0 and at most 1, not {value:g}")


def percent(option: str, value: float | None) -> None:
    """Check a limit.

    Raises:
        UsageFault: not between 0 and 100.
    """
    if value is not None and not 0 < value < 100:
        raise UsageFault(f"{option} is above 0 and below 100 percent, not {value:g}")


def names(text: str | None, option: str) -> tuple[str, ...]:
    """The names of a comma-separated option; none where it was not given.

    Raises:
        UsageFault: given without a name, which must not read as all.
    """
    found = tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
    if text is not None and not found:
        raise UsageFault(f"{option} was given without a name; leave it out for all")
    return found
