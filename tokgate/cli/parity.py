"""``tokgate parity``: look for a case on which two running servers differ, or replay one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
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
)
from tokgate.analysis.parity_case import Case, CaseRequest, load_case, save_case
from tokgate.errors import LoadFault, NotAnswering, UsageFault
from tokgate.gate.greedy import GreedyClient
from tokgate.gate.parity import SHAPES, SMALL_VOCABULARY, ask
from tokgate.gate.words import count
from tokgate.load.routes import resolve
from tokgate.load.sample import check_writable
from tokgate.models.truth import Truth, load_truth, predicted_output

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

    Exit code 0: equal, or ties only; 1: diverged, or the reference is not as known beforehand; 2: no such address;
    3: undecided, or a server does not answer.
    """
    reference, other = _clients(url, timeout_s)
    case = load_case(file)
    with _answering():
        wanted = ask(reference, case, as_reference=True)
        got = ask(other, case, as_reference=False).outputs
    control = compare(wanted.outputs, wanted.again, wanted.floor)
    result = compare(wanted.outputs, got, wanted.floor)
    unlike = unlike_truth(case, wanted.outputs)
    for line in [*lines(result, control, wanted.floor), *unlike]:
        typer.echo(line)
    raise typer.Exit(1 if unlike else {"PASS": 0, "DIVERGED": 1}.get(result.verdict, 3))


@app.command()
def search(
    url: Annotated[list[str], typer.Option("--url", help="twice: the reference's address, then the other's")],
    examples: Annotated[int, typer.Option("--examples", help="cases to draw")] = 100,
    budget_s: Annotated[float, typer.Option("--budget-s", help="the search ends by then, seconds")] = 300,
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", help="longest prompt")] = 64,
    new_tokens: Annotated[int, typer.Option("--new-tokens", help="most tokens of an output")] = 32,
    requests: Annotated[int, typer.Option("--requests", help="most requests of a case")] = 8,
    vocabulary: Annotated[int | None, typer.Option("--vocabulary", help="prompt ids stay below it")] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="synthetic pair that is served: its output is known")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="of the draws")] = 0,
    out: Annotated[Path, typer.Option("--out", help="where the smallest failing case is written")] = Path(
        "parity.case.json"
    ),
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", help="longest wait for one answer, seconds")
    ] = 600,
) -> None:
    """Draw cases until the servers differ, and make the case small.

    Exit code 0: no case differed by more than ties; 1: one did; 2: no such address; 3: the time was up, cases
    were undecided, or a server does not answer.
    """
    from tokgate.gate.parity_search import CONFIRMATIONS, Limits, Search, with_known, words

    reference, other = _clients(url, timeout_s)
    truth = None if model is None else load_truth(model)
    size = SMALL_VOCABULARY if truth is None else truth.rule.preset.vocab
    size = size if vocabulary is None else vocabulary
    limits = Limits(prompt_tokens, new_tokens, requests, size, examples, budget_s, seed)
    # At a near-tie either way is right, so nothing is known beforehand.
    known = None if truth is None or truth.near_tie is not None else partial(_known, truth)
    check_writable(out)
    with _answering():
        found = Search(reference, other, limits, known).run()
    ended = f"{count(found.examples, 'case')} asked, {count(found.ties, 'tie')}"
    if found.undecided:
        ended += f", {found.undecided} undecided"
    if not found.in_time:
        ended += f"; the time of {budget_s:g} s was up"
    if found.case is None or found.result is None or found.first is None:
        sure = found.in_time and not found.undecided
        typer.echo(f"{'PASS' if sure else 'INCONCLUSIVE'} no case differs: {ended}")
        raise typer.Exit(0 if sure else 3)
    typer.echo(f"DIVERGED {words(found.case)}: {ended}")
    text = [each.line() for each in found.result.failed]
    text.append(f"made small from {words(found.first)}")
    if found.again is not None:
        text.append(f"asked again it differed {found.again} of {CONFIRMATIONS} times")
    for each in text:
        typer.echo(f"  {each}")
    save_case(with_known(found.case, known), out)
    typer.echo(f"  file: {out}")
    typer.echo(f"  next: tokgate parity replay {out} --url {url[0]} --url {url[1]}")
    raise typer.Exit(1)


def _known(truth: Truth, request: CaseRequest) -> list[int]:
    return predicted_output(truth, request.prompt_ids, request.new_tokens)


def _clients(url: Sequence[str], timeout_s: float) -> tuple[GreedyClient, GreedyClient]:
    """Clients of the reference and of the other.

    Raises:
        UsageFault: not two addresses of servers, one address twice, or no time to wait.
    """
    if len(url) != 2:
        raise UsageFault(f"--url must be given twice (reference, then other), got {len(url)}")
    if not timeout_s > 0:
        raise UsageFault(f"--timeout-s must be above 0, got {timeout_s:g}")
    first, second = (resolve(address) for address in url)
    if (first.address, first.prefix) == (second.address, second.prefix):
        raise UsageFault(
            f"both addresses are of one server, {first.url}: held against itself it never differs",
            ["as a control start the same build twice"],
        )
    return GreedyClient(first.url, timeout_s), GreedyClient(second.url, timeout_s)


@contextmanager
def _answering() -> Iterator[None]:
    """A server that fails is no difference.

    Raises:
        NotAnswering: one of the servers does not answer, or not as it should.
    """
    try:
        yield
    except LoadFault as fault:
        raise NotAnswering(fault.headline, fault.details) from fault


def lines(result: ParityResult, control: ParityResult, floor: Floor | None) -> list[str]:
    """The report: verdict, floor, control, and every request that differs."""
    text = [f"{result.verdict} {result.headline()}"]
    if floor is None:
        text.append("  floor: not measured, no difference is forgiven")
    else:
        text.append(
            f"  floor: the reference's top-2 gaps move by up to {floor.largest:.3g} nats between {SHAPES} "
            f"({floor.compared} gaps); a gap up to {floor.tolerance:.3g} is a tie"
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
