"""``tokgate parity``: replay a parity case against two running servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tokgate.analysis.parity import (
    Floor,
    Outcome,
    Output,
    ParityResult,
    compare,
    first_difference,
    measure_floor,
)
from tokgate.analysis.parity_case import Case, load_case
from tokgate.errors import UsageFault
from tokgate.gate.greedy import GreedyClient

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Greedy parity between two running servers."
)


@app.callback()
def parity() -> None:
    """Greedy parity between two running servers."""


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="case file")],
    url: Annotated[list[str], typer.Option("--url", help="twice: the reference's address, then the other's")],
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", help="longest wait for one answer, seconds")
    ] = 600,
) -> None:
    """Send the case to both servers and compare the token ids.

    Exit code 0: equal, or ties only; 1: diverged, or the reference is not as known beforehand; 3: undecided.
    """
    if len(url) != 2:
        raise UsageFault(f"--url must be given twice (reference, then other), got {len(url)}")
    if not timeout_s > 0:
        raise UsageFault(f"--timeout-s must be above 0, got {timeout_s:g}")
    case = load_case(file)
    reference, other = (GreedyClient(address.rstrip("/"), timeout_s) for address in url)
    if case.flush_first:
        reference.flush()
        other.flush()
    wanted = reference.answer(case, candidates=True)
    again = reference.answer(case)
    got = other.answer(case)
    pairs = [
        (output.top or {}, reference.rescore(request, output))
        for request, output in zip(case.requests, wanted, strict=True)
    ]
    floor = measure_floor(pairs)
    control = compare(wanted, again, floor, wanted_tokens=None)
    result = compare(wanted, got, floor, wanted_tokens=None)
    unlike = unlike_truth(case, wanted)
    for line in [*lines(result, control, floor), *unlike]:
        typer.echo(line)
    raise typer.Exit(1 if unlike else {"PASS": 0, "DIVERGED": 1}.get(result.verdict, 3))


def lines(result: ParityResult, control: ParityResult, floor: Floor | None) -> list[str]:
    """The report: verdict, floor, control, and every request that differs."""
    text = [f"{result.verdict} {result.headline()}"]
    if floor is None:
        text.append("  floor: not measured, no difference is forgiven")
    else:
        text.append(
            f"  floor: the reference's top-2 gaps move by up to {floor.largest:.3g} nats between decoding "
            f"and re-scoring ({floor.compared} gaps); a gap up to {floor.tolerance:.3g} is a tie"
        )
    text.append(f"  control: the reference against itself: {control.headline()}")
    text += [f"  {each.line()}" for each in result.comparisons if each.outcome is not Outcome.EQUAL]
    return text


def unlike_truth(case: Case, outputs: Sequence[Output]) -> list[str]:
    """A line for each request whose reference output is not the one known beforehand."""
    found = []
    for i, known in enumerate(case.wanted_ids or ()):
        at = first_difference(known, outputs[i].ids)
        if at is not None:
            found.append(f"  request {i}: the reference itself leaves the known output at token {at}")
    return found
